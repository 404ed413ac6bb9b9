#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace safetensorfs {

/// A folder for one test, removed with all in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

  /// Writes a file, folders above it too, and returns its path.
  std::string Write(std::string_view name, std::string_view bytes) const;

 private:
  std::string path_;
};

/// A safetensors file of this header and data.
std::string MakeFile(std::string_view header, std::string_view data = {});

/// N as a file begins with it.
std::string LittleEndian64(std::uint64_t value);

}  // namespace safetensorfs

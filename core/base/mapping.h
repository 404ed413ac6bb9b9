#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace safetensorfs {

/// A read-only shared mapping of a whole file, unmapped when it goes. Move-only.
///
/// Bytes past the end of a file that has shrunk raise SIGBUS when this process touches them: hand
/// the addresses to the kernel (which answers EFAULT), never dereference them.
class Mapping {
 public:
  Mapping() = default;
  /// Maps `size` bytes of `fd`. Empty where the file cannot be mapped; `error()` says why.
  Mapping(int fd, std::uint64_t size);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::span<const std::byte> bytes() const { return bytes_; }
  /// The errno of a mapping that failed, else 0.
  int error() const { return error_; }

 private:
  std::span<const std::byte> bytes_;
  int error_ = 0;
};

}  // namespace safetensorfs

#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/device/device.h"
#include "core/format/checkpoint.h"
#include "tests/catch.h"
#include "tests/unit/temporary_folder.h"

namespace safetensorfs {

/// `nbytes` bytes that look alike nowhere.
inline std::string Noise(std::size_t nbytes, std::uint64_t seed) {
  std::string bytes(nbytes, '\0');
  std::uint64_t x = seed * 2 + 1;
  for (char& byte : bytes) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    byte = static_cast<char>(x);
  }
  return bytes;
}

/// A checkpoint of tensors t0, t1, ... of so many bytes each.
class Model {
 public:
  explicit Model(const std::vector<std::uint64_t>& sizes) {
    std::string header = "{";
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      header += (i > 0 ? ",\"t" : "\"t") + std::to_string(i) + R"(":{"dtype":"U8","shape":[)" +
                std::to_string(sizes[i]) + R"(],"data_offsets":[)" + std::to_string(at) + "," +
                std::to_string(at + sizes[i]) + "]}";
      at += sizes[i];
    }
    data_ = Noise(at, sizes.size());
    Problems problems;
    path_ = folder_.Write("m.safetensors", MakeFile(header + "}", data_));
    checkpoint_ = OpenFile(path_, problems);
    REQUIRE(checkpoint_);
  }

  const Checkpoint& checkpoint() const { return *checkpoint_; }
  const std::string& path() const { return path_; }
  std::uint64_t nbytes() const { return data_.size(); }
  std::vector<std::uint32_t> all() const {
    std::vector<std::uint32_t> tensors(checkpoint_->index.size());
    std::iota(tensors.begin(), tensors.end(), 0);
    return tensors;
  }
  std::string_view bytes_of(std::uint32_t tensor) const {
    const auto& index = checkpoint_->index;
    return std::string_view(data_).substr(index[tensor].offset - index[0].offset,
                                          index[tensor].nbytes);
  }

 private:
  TemporaryFolder folder_;
  std::string path_;
  std::string data_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

/// Reads a loaded tensor back: errno and bytes.
inline std::pair<int, std::string> ReadWhole(Device& device, const Checkpoint& checkpoint,
                                             std::uint32_t tensor) {
  const std::uint64_t nbytes = checkpoint.index[tensor].nbytes;
  std::string bytes;
  int error = 0;
  // As the kernel does: a mebibyte at a time.
  for (std::uint64_t at = 0; at < nbytes && error == 0;) {
    std::promise<std::pair<int, std::string>> answer;
    device.Read(checkpoint, tensor, at, std::min<std::uint64_t>(nbytes - at, 1 << 20),
                [&answer](int code, const Pieces& pieces) {
                  std::string text;
                  pieces.ForEach([&text](const Piece& piece) {
                    text.append(reinterpret_cast<const char*>(piece.memory), piece.size);
                  });
                  answer.set_value({code, text});
                });
    auto [code, text] = answer.get_future().get();
    if (code == 0 && text.empty()) code = -1;
    error = code;
    at += text.size();
    bytes += text;
  }
  return {error, bytes};
}

}  // namespace safetensorfs

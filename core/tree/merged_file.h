#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "core/format/checkpoint.h"
#include "core/tree/document.h"
#include "core/tree/pieces.h"

namespace safetensorfs {

/// A checkpoint as one valid safetensors file: SOURCE itself, or for shards a header made for all
/// of them, followed by ranges of the shards; nothing is copied. Tensors are laid out by the size
/// of their elements, largest first, as the reference's writer does: whatever the shards' lengths,
/// each tensor is then aligned to its elements. Made when it is first asked for; thread-safe.
class MergedFile {
 public:
  /// Refers to `checkpoint`, which must outlive it.
  explicit MergedFile(const Checkpoint& checkpoint);

  /// In bytes. Throws Error (EFBIG) where the header would be over the format's limit.
  std::uint64_t size() const;

  /// Adds the bytes [offset, offset+size), fewer at the end of the file.
  void Read(std::uint64_t offset, std::uint64_t size, Pieces& pieces) const;

 private:
  // A run of bytes of one source.
  struct Range {
    std::uint64_t begin;   // bytes from the start of the data
    std::uint64_t offset;  // bytes from the start of the source
    std::uint64_t size;
    std::uint32_t source;
  };

  void LayOut() const;
  void RenderRow(std::uint64_t row, std::string& out) const;
  std::uint64_t data_offset() const;

  const Checkpoint& checkpoint_;
  mutable std::once_flag laid_out_;
  mutable std::vector<std::uint32_t> order_;   // tensors as they lie in the data
  mutable std::vector<std::uint64_t> begins_;  // of each, in that order; the last is the size
  mutable std::vector<Range> ranges_;
  Document header_;
};

}  // namespace safetensorfs

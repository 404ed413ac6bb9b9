#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace safetensorfs {

/// A text of many rows that is rendered when it is read and never kept whole: a checkpoint may have
/// millions of tensors. Asking its size renders every row once, and notes where each block of rows
/// begins; a read renders the blocks that it needs. Thread-safe.
class Document {
 public:
  /// Appends row `row` to `out`. Must give the same bytes every time, from any thread.
  using RowRenderer = std::function<void(std::uint64_t row, std::string& out)>;

  /// `prepare` makes the renderer, once, when the text is first asked for.
  Document(std::uint64_t rows, std::function<RowRenderer()> prepare)
      : rows_(rows), prepare_(std::move(prepare)) {}

  /// In bytes.
  std::uint64_t size() const;

  /// Appends the bytes [offset, offset+size) to `out`, fewer at the end of the text.
  void Read(std::uint64_t offset, std::uint64_t size, std::string& out) const;

 private:
  static constexpr std::uint64_t kBlockRows = 64;

  void Count() const;

  std::uint64_t rows_;
  std::function<RowRenderer()> prepare_;
  mutable std::once_flag counted_;
  mutable RowRenderer render_;
  mutable std::vector<std::uint64_t> block_offsets_;  // bytes; the last is the size
};

}  // namespace safetensorfs

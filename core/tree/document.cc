#include "core/tree/document.h"

#include <algorithm>

namespace safetensorfs {

void Document::Count() const {
  std::call_once(counted_, [this] {
    render_ = prepare_();
    std::uint64_t size = 0;
    std::string row;
    for (std::uint64_t i = 0; i < rows_; ++i) {
      if (i % kBlockRows == 0) block_offsets_.push_back(size);
      row.clear();
      render_(i, row);
      size += row.size();
    }
    block_offsets_.push_back(size);
    block_offsets_.shrink_to_fit();
  });
}

std::uint64_t Document::size() const {
  Count();
  return block_offsets_.back();
}

void Document::Read(std::uint64_t offset, std::uint64_t size, std::string& out) const {
  const std::uint64_t end = std::min(offset + size, this->size());
  if (offset >= end) return;
  const auto after = std::upper_bound(block_offsets_.begin(), block_offsets_.end(), offset);
  std::uint64_t row = static_cast<std::uint64_t>(after - block_offsets_.begin() - 1) * kBlockRows;
  std::uint64_t at = *(after - 1);
  std::string text;
  for (; at < end; ++row) {
    text.clear();
    render_(row, text);
    const std::uint64_t from = std::max(at, offset);
    const std::uint64_t to = std::min(at + text.size(), end);
    if (from < to) out.append(text, from - at, to - from);
    at += text.size();
  }
}

}  // namespace safetensorfs

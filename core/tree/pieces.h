#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/format/source_file.h"

namespace safetensorfs {

/// Bytes of an answer: in memory where `fd` is -1, else a range of a file, which may be mapped too.
struct Piece {
  int fd = -1;
  std::uint64_t offset = 0;           // bytes from the start of the file
  std::uint64_t size = 0;             // bytes
  const std::byte* memory = nullptr;  // null for a file without mapping; see Mapping for SIGBUS
};

/// What one read of a file returns, in order: some rendered text, then ranges of files. Up to 16
/// ranges cost no allocation. Views into sources; owns the text.
class Pieces {
 public:
  /// The rendered text, which goes first: append to it before the first range is added.
  std::string& text() { return text_; }

  void AddRange(const SourceFile& source, std::uint64_t offset, std::uint64_t size);
  void AddRange(int fd, std::uint64_t offset, std::uint64_t size);

  /// Calls visit(Piece) for each piece that is not empty.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    if (!text_.empty()) {
      visit(Piece{-1, 0, text_.size(), reinterpret_cast<const std::byte*>(text_.data())});
    }
    for (std::size_t i = 0; i < count_; ++i) visit(i < kInline ? inline_[i] : more_[i - kInline]);
  }
  std::size_t count() const { return count_ + (text_.empty() ? 0 : 1); }

 private:
  static constexpr std::size_t kInline = 16;

  void Add(const Piece& piece);

  std::string text_;
  std::array<Piece, kInline> inline_;
  std::size_t count_ = 0;
  std::vector<Piece> more_;
};

}  // namespace safetensorfs

#include "core/tree/pieces.h"

namespace safetensorfs {

void Pieces::AddRange(const SourceFile& source, std::uint64_t offset, std::uint64_t size) {
  const auto mapping = source.mapping();
  Add({source.fd(), offset, size, mapping.empty() ? nullptr : mapping.data() + offset});
}

void Pieces::AddRange(int fd, std::uint64_t offset, std::uint64_t size) {
  Add({fd, offset, size, nullptr});
}

void Pieces::Add(const Piece& piece) {
  if (piece.size == 0) return;
  if (count_ < kInline) {
    inline_[count_] = piece;
  } else {
    more_.push_back(piece);
  }
  ++count_;
}

}  // namespace safetensorfs

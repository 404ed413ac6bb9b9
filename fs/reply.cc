#include "fs/reply.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <vector>

#include "core/base/text.h"

namespace safetensorfs {
namespace {

// Less than two pages libfuse does not splice.
constexpr std::uint64_t kMinSplice = 8192;

std::string PathOf(int fd) {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), error);
  return Printable(path.string());
}

// Bytes that were cut off would come back as zeros from the kernel's page cache.
void CheckHolds(const Piece& piece) {
  struct stat now;
  if (fstat(piece.fd, &now) != 0) ThrowErrno(PathOf(piece.fd), "cannot stat");
  if (static_cast<std::uint64_t>(now.st_size) >= piece.offset + piece.size) return;
  throw Error(EIO, PathOf(piece.fd) + ": ends at byte " + std::to_string(now.st_size) +
                       " by now, byte " + std::to_string(piece.offset + piece.size) +
                       " is asked for");
}

// The bytes of a piece that libfuse would not splice, in `buffer`.
void ReadPiece(const Piece& piece, char* buffer) {
  if (piece.fd < 0) {
    std::memcpy(buffer, piece.memory, piece.size);
    return;
  }
  const ssize_t n = pread(piece.fd, buffer, piece.size, static_cast<off_t>(piece.offset));
  if (n < 0) ThrowErrno(PathOf(piece.fd), "cannot read");
  if (static_cast<std::uint64_t>(n) == piece.size) return;
  CheckHolds(piece);
  throw Error(EIO, PathOf(piece.fd) + ": gives fewer bytes than it holds");
}

// One piece goes to the kernel from its memory, which costs less than to copy it (as when a piece
// is spliced, a source that is cut right after the check gives zeros to the end of the page). Of
// several, libfuse would read the mapping itself, and a source that shrinks would end the daemon
// with SIGBUS: they are read into a buffer.
void ReplySmall(fuse_req_t request, const Pieces& pieces) {
  std::array<char, kMinSplice> buffer;
  const char* bytes = buffer.data();
  std::size_t size = 0;
  pieces.ForEach([&](const Piece& piece) {
    if (pieces.count() == 1 && piece.memory != nullptr) {
      if (piece.fd >= 0) CheckHolds(piece);
      bytes = reinterpret_cast<const char*>(piece.memory);
    } else {
      ReadPiece(piece, buffer.data() + size);
    }
    size += piece.size;
  });
  fuse_reply_buf(request, bytes, size);
}

// A fuse_bufvec with room for `count` buffers; small ones need no allocation.
class Buffers {
 public:
  explicit Buffers(std::size_t count) {
    const std::size_t size = sizeof(fuse_bufvec) + count * sizeof(fuse_buf);
    if (size > inline_.size()) more_.resize(size);
    vector_ = reinterpret_cast<fuse_bufvec*>(more_.empty() ? inline_.data() : more_.data());
    *vector_ = {};
  }

  void Add(const Piece& piece) {
    fuse_buf& buffer = vector_->buf[vector_->count++];
    buffer = {};
    buffer.size = piece.size;
    buffer.fd = -1;
    if (piece.fd < 0) {
      buffer.mem = const_cast<std::byte*>(piece.memory);
    } else {
      buffer.flags = static_cast<fuse_buf_flags>(FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK);
      buffer.fd = piece.fd;
      buffer.pos = static_cast<off_t>(piece.offset);
    }
  }

  fuse_bufvec* get() { return vector_; }

 private:
  alignas(fuse_bufvec) std::array<char, sizeof(fuse_bufvec) + 17 * sizeof(fuse_buf)> inline_;
  std::vector<char> more_;
  fuse_bufvec* vector_;
};

}  // namespace

void ReplyPieces(fuse_req_t request, const Pieces& pieces) {
  std::uint64_t total = 0;
  pieces.ForEach([&](const Piece& piece) { total += piece.size; });
  if (total < kMinSplice) return ReplySmall(request, pieces);
  pieces.ForEach([](const Piece& piece) {
    if (piece.fd >= 0) CheckHolds(piece);
  });
  // Splicing from the descriptors moves no bytes through this process: a source that shrinks cannot
  // end it with SIGBUS.
  Buffers buffers(pieces.count());
  pieces.ForEach([&](const Piece& piece) { buffers.Add(piece); });
  fuse_reply_data(request, buffers.get(), static_cast<fuse_buf_copy_flags>(0));
}

}  // namespace safetensorfs

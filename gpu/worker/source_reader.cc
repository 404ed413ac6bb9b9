#include "gpu/worker/source_reader.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <linux/stat.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>

#include "core/base/error.h"
#include "core/base/text.h"

namespace safetensorfs {
namespace {

constexpr std::uint64_t kPage = 4096;
// Slots leave room for this much on both sides.
constexpr std::uint64_t kMaxAlignment = 64 << 10;
// Below this, a read past the cache costs more than it saves.
constexpr std::uint64_t kMinBypass = 256 << 10;
// As <linux/stat.h> since 6.1 has it, which Debian 12's C library hides.
constexpr unsigned kStatxDioalign = 0x2000;

// File systems that have no disk of their own: the cache is theirs to keep, or is what they are.
bool IsLocalDisk(int fd) {
  struct statfs status;
  if (fstatfs(fd, &status) != 0) return false;
  constexpr std::array<std::uint32_t, 11> kOthers = {NFS_SUPER_MAGIC,
                                                     SMB_SUPER_MAGIC,
                                                     0xFF534D42u /* cifs */,
                                                     0xFE534D42u /* smb2 */,
                                                     FUSE_SUPER_MAGIC,
                                                     0x00C36400u /* ceph */,
                                                     V9FS_MAGIC,
                                                     AFS_SUPER_MAGIC,
                                                     0x0BD00BD0u /* lustre */,
                                                     TMPFS_MAGIC,
                                                     RAMFS_MAGIC};
  return std::ranges::find(kOthers, static_cast<std::uint32_t>(status.f_type)) == kOthers.end();
}

// 0 where the file cannot be read past the cache, or nothing says how.
std::uint64_t DirectAlignment(int fd) {
  struct Statx {  // the part of struct statx that is asked for
    std::uint32_t mask;
    std::array<std::uint32_t, 37> other;
    std::uint32_t dio_mem_align;
    std::uint32_t dio_offset_align;
    std::array<std::uint64_t, 12> spare;
  } answer = {};
  static_assert(offsetof(Statx, dio_mem_align) == 0x98 && sizeof(Statx) == 256);
  if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, kStatxDioalign, &answer) != 0) return 0;
  if ((answer.mask & kStatxDioalign) == 0 || answer.dio_offset_align == 0) return 0;
  return std::max<std::uint64_t>({kPage, answer.dio_mem_align, answer.dio_offset_align});
}

UniqueFd Reopen(int fd, int flags) {
  return UniqueFd(
      open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDONLY | O_CLOEXEC | flags));
}

// Whether a byte of a file is in the page cache; nothing where the kernel does not tell.
std::optional<bool> IsCached(int fd, std::uint64_t offset) {
  char byte;
  iovec part = {&byte, 1};
  if (preadv2(fd, &part, 1, static_cast<off_t>(offset), RWF_NOWAIT) == 1) return true;
  if (errno == EAGAIN) return false;
  return std::nullopt;
}

}  // namespace

SourceReader::SourceReader(UniqueFd fd, std::string path, bool may_bypass)
    : fd_(std::move(fd)), path_(std::move(path)) {
  if (may_bypass && IsLocalDisk(fd_.get())) OpenPastCache();
}

void SourceReader::OpenPastCache() {
  alignment_ = DirectAlignment(fd_.get());
  if (alignment_ == 0 || alignment_ > kMaxAlignment) return;
  direct_ = Reopen(fd_.get(), O_DIRECT);
  asking_ = Reopen(fd_.get(), 0);
  // Otherwise asking for a byte would fetch its neighbourhood.
  if (!direct_ || !asking_ || posix_fadvise(asking_.get(), 0, 0, POSIX_FADV_RANDOM) != 0) return;
  bypasses_ = IsCached(asking_.get(), 0).has_value();
}

void SourceReader::ThrowUnreadable(std::uint64_t offset, int code) const {
  throw Error(EIO, Printable(path_) + ": cannot be read from byte " + std::to_string(offset) +
                       " on: " + (code != 0 ? ErrnoText(code) : "the file ends there"));
}

void SourceReader::Read(std::span<iovec> parts, std::uint64_t offset) const {
  while (!parts.empty()) {
    const int count = static_cast<int>(std::min<std::size_t>(parts.size(), IOV_MAX));
    ssize_t n = preadv(fd_.get(), parts.data(), count, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) ThrowUnreadable(offset, n < 0 ? errno : 0);
    offset += static_cast<std::uint64_t>(n);
    while (!parts.empty() && static_cast<std::size_t>(n) >= parts.front().iov_len) {
      n -= static_cast<ssize_t>(parts.front().iov_len);
      parts = parts.subspan(1);
    }
    if (!parts.empty()) {
      parts.front().iov_base = static_cast<char*>(parts.front().iov_base) + n;
      parts.front().iov_len -= static_cast<std::size_t>(n);
    }
  }
}

bool SourceReader::PrefersBypass(std::uint64_t offset, std::uint64_t nbytes) const {
  if (!bypasses_ || nbytes < kMinBypass) return false;
  // A page at the start, in the middle and at the end. mincore(2) lies to those who do not own the
  // file; this does not.
  for (const std::uint64_t at : {offset, offset + nbytes / 2, offset + nbytes - 1}) {
    if (!IsCached(asking_.get(), at).value_or(true)) return true;
  }
  return false;
}

std::uint64_t SourceReader::ReadPastCache(void* out, std::uint64_t nbytes,
                                          std::uint64_t offset) const {
  std::uint64_t done = 0;
  while (done < nbytes) {
    const ssize_t n = pread(direct_.get(), static_cast<char*>(out) + done, nbytes - done,
                            static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += static_cast<std::uint64_t>(n);
    // Only at the end of the file is a part of a block read.
    if (done % alignment_ != 0) break;
  }
  return done;
}

}  // namespace safetensorfs

#include "core/format/source_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "core/base/error.h"
#include "core/base/text.h"

namespace safetensorfs {
namespace {

bool IsSameSizeAndTime(const struct stat& a, const struct stat& b) {
  return a.st_size == b.st_size && a.st_mtim.tv_sec == b.st_mtim.tv_sec &&
         a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

}  // namespace

UniqueFd OpenRegularFile(const std::string& path, struct stat& status) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd) ThrowErrno(path, "cannot open");
  if (fstat(fd.get(), &status) != 0) ThrowErrno(path, "cannot stat");
  if (S_ISDIR(status.st_mode)) throw Error(EISDIR, Printable(path) + ": is a directory");
  if (!S_ISREG(status.st_mode)) throw Error(EINVAL, Printable(path) + ": is not a regular file");
  return fd;
}

bool IsSameContent(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && IsSameSizeAndTime(a, b);
}

SourceFile::SourceFile(const std::string& path)
    : fd_(OpenRegularFile(path, status_)), mapping_(fd_.get(), size()) {
  std::error_code error;
  path_ = std::filesystem::canonical(path, error).string();
  if (error) path_ = std::filesystem::absolute(path).string();
}

void SourceFile::Read(std::uint64_t offset, std::span<char> out) const {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t n =
        pread(fd_.get(), out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      throw Error(EIO, Printable(path_) + ": cannot read at byte " + std::to_string(offset + done) +
                           ": " + ErrnoText(errno));
    }
    if (n == 0) {
      throw Error(EIO, Printable(path_) + ": ends at byte " + std::to_string(offset + done) +
                           ", it held " + std::to_string(size()) + " when it was opened");
    }
    done += static_cast<std::size_t>(n);
  }
}

bool SourceFile::IsUnchanged() const {
  struct stat now;
  return fstat(fd_.get(), &now) == 0 && IsSameSizeAndTime(now, status_);
}

void SourceFile::CheckUnchanged() const {
  if (IsUnchanged()) return;
  throw Error(ESTALE, Printable(path_) + ": was changed in place since it was mounted");
}

SourceState SourceFile::State() const {
  if (!IsUnchanged()) return SourceState::kChanged;
  struct stat there;
  if (stat(path_.c_str(), &there) != 0) return SourceState::kReplaced;
  const bool same = there.st_dev == status_.st_dev && there.st_ino == status_.st_ino;
  return same ? SourceState::kUnchanged : SourceState::kReplaced;
}

}  // namespace safetensorfs

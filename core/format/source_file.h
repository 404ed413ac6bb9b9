#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/base/mapping.h"
#include "core/base/unique_fd.h"

namespace safetensorfs {

/// How a source stands now against how it was when it was opened.
enum class SourceState {
  kUnchanged,
  kReplaced,  // the path leads elsewhere; the descriptor still holds what it held
  kChanged,   // size or modification time of the file itself differ
};

/// A regular file that is read for the life of the mount: descriptor, mapping, and what stat said
/// when it was opened. The descriptor pins the file: a source that is replaced by rename(2) goes on
/// being served. Immutable and thread-safe.
class SourceFile {
 public:
  /// Opens `path` through symbolic links. Throws Error (ENOENT, EACCES, EISDIR, ...).
  explicit SourceFile(const std::string& path);

  /// Absolute, symbolic links resolved.
  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }
  const struct stat& status() const { return status_; }
  std::uint64_t size() const { return static_cast<std::uint64_t>(status_.st_size); }
  /// Empty where the file system refuses mmap; then serve by descriptor. See Mapping for SIGBUS.
  std::span<const std::byte> mapping() const { return mapping_.bytes(); }

  /// Reads exactly `out.size()` bytes at `offset` by pread(2). Throws Error (EIO).
  void Read(std::uint64_t offset, std::span<char> out) const;

  /// False once size or modification time differ: a system call on the descriptor, no path walk.
  bool IsUnchanged() const;
  /// Throws Error (ESTALE) where that is so.
  void CheckUnchanged() const;
  /// Also asks whether the path still leads to this file.
  SourceState State() const;

 private:
  std::string path_;
  struct stat status_ = {};  // before fd_: opening fills it
  UniqueFd fd_;
  Mapping mapping_;
};

/// Opens a regular file for reading, without hanging on a FIFO. Throws Error.
UniqueFd OpenRegularFile(const std::string& path, struct stat& status);

/// True if the two describe one file of one content, by device, inode, size and mtime.
bool IsSameContent(const struct stat& a, const struct stat& b);

}  // namespace safetensorfs

#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <string>

#include "core/base/unique_fd.h"

namespace safetensorfs {

/// A source that a job reads. Immutable and thread-safe.
class SourceReader {
 public:
  /// `may_bypass`: pages that are not in the page cache may be read past it, which leaves the cache
  /// to others and suits disks that like deep queues; done on local disks only, where it works.
  SourceReader(UniqueFd fd, std::string path, bool may_bypass);

  /// Fills `parts`, one after the other, from `offset` on. Throws Error (EIO).
  void Read(std::span<iovec> parts, std::uint64_t offset) const;

  /// Whether bytes should be read past the page cache: it is possible, and they are not in it.
  bool PrefersBypass(std::uint64_t offset, std::uint64_t nbytes) const;
  /// What offsets, sizes and addresses of ReadPastCache are multiples of.
  std::uint64_t alignment() const { return alignment_; }
  /// Reads `nbytes` bytes at `offset`, less at the end of the file; returns how many. Fewer than
  /// are there where it does not work after all: then Read does, or says why not.
  std::uint64_t ReadPastCache(void* out, std::uint64_t nbytes, std::uint64_t offset) const;

  const std::string& path() const { return path_; }

 private:
  void OpenPastCache();
  [[noreturn]] void ThrowUnreadable(std::uint64_t offset, int code) const;

  UniqueFd fd_;
  std::string path_;
  std::uint64_t alignment_ = 0;
  UniqueFd direct_;  // O_DIRECT
  UniqueFd asking_;  // asks what is in the cache, without readahead
  bool bypasses_ = false;
};

}  // namespace safetensorfs

#pragma once

#include <string>

#include "core/base/unique_fd.h"

namespace safetensorfs {

/// The process that goes to the background while the one that was called waits: it returns when the
/// mount answers, with an exit status that says whether it does. Not fuse_daemonize(), whose parent
/// exits 0 before the first request can be answered.
class Background {
 public:
  /// Forks, unless `foreground`. In the parent, waits for the child, then for `mountpoint` to
  /// answer a stat, and sets `status()`; in the child, and in the foreground, there is none yet.
  /// Call before there are threads.
  Background(bool foreground, const std::string& mountpoint);

  bool is_parent() const { return is_parent_; }
  /// The parent's exit status.
  int status() const { return status_; }

  /// The child is ready: lets go of the caller's terminal and pipes, and lets the parent return.
  void Ready();

 private:
  void Wait(UniqueFd ready, int child, const std::string& mountpoint);

  UniqueFd ready_;
  bool is_parent_ = false;
  int status_ = 0;
};

/// While it lives, what this process and its children write to stderr is collected instead. In the
/// background also stdin and stdout are closed for good: fusermount3 with auto_unmount keeps them
/// as long as the mount stands, and a caller that reads them would wait for that.
class StderrCapture {
 public:
  explicit StderrCapture(bool detach);
  StderrCapture(const StderrCapture&) = delete;
  StderrCapture& operator=(const StderrCapture&) = delete;
  ~StderrCapture();

  /// What was written so far, without the last newline.
  std::string Text() const;

 private:
  UniqueFd saved_;
  UniqueFd captured_;
};

/// Points descriptors 0 to 2 at /dev/null, stderr only where `stderr_too`.
void DetachStandardStreams(bool stderr_too);

}  // namespace safetensorfs

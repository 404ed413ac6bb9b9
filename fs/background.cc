#include "fs/background.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>

#include "core/base/error.h"
#include "core/base/text.h"
#include "fs/options.h"

namespace safetensorfs {

Background::Background(bool foreground, const std::string& mountpoint) {
  if (foreground) return;
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0) ThrowErrno("safetensorfs", "cannot make a pipe");
  UniqueFd read_end(ends[0]);
  ready_ = UniqueFd(ends[1]);
  const pid_t child = fork();
  if (child < 0) ThrowErrno("safetensorfs", "cannot fork");
  if (child == 0) {
    setsid();
    return;
  }
  ready_ = UniqueFd();
  Wait(std::move(read_end), child, mountpoint);
}

void Background::Wait(UniqueFd ready, int child, const std::string& mountpoint) {
  is_parent_ = true;
  char byte;
  ssize_t n;
  do {
    n = read(ready.get(), &byte, 1);
  } while (n < 0 && errno == EINTR);
  if (n == 1) {
    struct stat answer;
    if (stat(mountpoint.c_str(), &answer) == 0) return;
    status_ = kExitMount;
    std::fprintf(stderr, "safetensorfs: %s: does not answer: %s\n", Printable(mountpoint).c_str(),
                 ErrnoText(errno).c_str());
    return;
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) {
    status_ = WEXITSTATUS(status);
    return;
  }
  status_ = kExitMount;
  std::fprintf(stderr, "safetensorfs: the daemon was killed by signal %d\n", WTERMSIG(status));
}

void Background::Ready() {
  if (!ready_) return;
  DetachStandardStreams(/*stderr_too=*/true);
  const char byte = 0;
  // A parent that is gone needs no answer.
  [[maybe_unused]] const ssize_t n = write(ready_.get(), &byte, 1);
  ready_ = UniqueFd();
}

void DetachStandardStreams(bool stderr_too) {
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null) ThrowErrno("/dev/null", "cannot open");
  for (int fd = 0; fd < (stderr_too ? 3 : 2); ++fd) dup2(null.get(), fd);
}

StderrCapture::StderrCapture(bool detach)
    : saved_(fcntl(2, F_DUPFD_CLOEXEC, 3)), captured_(memfd_create("stderr", MFD_CLOEXEC)) {
  if (detach) DetachStandardStreams(/*stderr_too=*/false);
  if (captured_) dup2(captured_.get(), 2);
}

StderrCapture::~StderrCapture() {
  if (saved_) dup2(saved_.get(), 2);
}

std::string StderrCapture::Text() const {
  std::string text(4096, '\0');
  const ssize_t n = pread(captured_.get(), text.data(), text.size(), 0);
  text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace safetensorfs

// slow_server FILE MOUNTPOINT: shows FILE as MOUNTPOINT/model.safetensors, which can be mapped,
// behind a gate: a read that begins at the limit or beyond waits. A line on stdin is the new limit
// in bytes; at first, and once stdin ends, there is none. Prints "ready" once mounted, and "held"
// for a read that waits where none waited before. Ends with the mount, or on SIGINT, SIGTERM or
// SIGHUP.
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/mount/one_file_server.h"

namespace {

constexpr off_t kNoLimit = std::numeric_limits<off_t>::max();

void Say(const char* word) {
  std::puts(word);
  std::fflush(stdout);
}

// The file and the reads that wait for it.
class Gate : public Served {
 public:
  explicit Gate(int descriptor) : Served{descriptor} {}

  void Read(fuse_req_t req, size_t size, off_t offset) {
    if (offset < limit_) return Reply({req, size, offset});
    held_.push_back({req, size, offset});
    if (held_.size() == 1) Say("held");
  }

  void SetLimit(off_t limit) {
    limit_ = limit;
    for (const Held& held : std::exchange(held_, {})) {
      if (held.offset < limit_) {
        Reply(held);
      } else {
        held_.push_back(held);
      }
    }
  }

  // Takes lines from stdin. False at its end.
  bool ReadLimits() {
    char text[256];
    const ssize_t count = read(STDIN_FILENO, text, sizeof text);
    if (count <= 0) {
      SetLimit(kNoLimit);
      return false;
    }
    line_.append(text, static_cast<size_t>(count));
    for (size_t end; (end = line_.find('\n')) != line_.npos; line_.erase(0, end + 1)) {
      SetLimit(std::strtoll(line_.c_str(), nullptr, 10));
    }
    return true;
  }

 private:
  struct Held {
    fuse_req_t req;
    size_t size;
    off_t offset;
  };

  void Reply(const Held& held) const {
    std::vector<char> buffer(held.size);
    const ssize_t count = pread(source, buffer.data(), held.size, held.offset);
    if (count < 0) {
      fuse_reply_err(held.req, errno);
    } else {
      fuse_reply_buf(held.req, buffer.data(), static_cast<size_t>(count));
    }
  }

  off_t limit_ = kNoLimit;
  std::vector<Held> held_;
  std::string line_;
};

Gate& GateOf(fuse_req_t req) { return *static_cast<Gate*>(fuse_req_userdata(req)); }

void Open(fuse_req_t req, fuse_ino_t, fuse_file_info* file) {
  ReplyOpen(req, file, [](fuse_file_info& info) { info.keep_cache = 1; });
}

void Read(fuse_req_t req, fuse_ino_t, size_t size, off_t offset, fuse_file_info*) {
  GateOf(req).Read(req, size, offset);
}

// One thread serves both the kernel and stdin. Signals come in while it waits only, so that none is
// overlooked.
void Serve(fuse_session* session, Gate& gate, const sigset_t& while_waiting) {
  fuse_buf buffer{};
  pollfd watched[] = {{fuse_session_fd(session), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
  fcntl(watched[0].fd, F_SETFL, O_NONBLOCK);
  while (!fuse_session_exited(session)) {
    if (ppoll(watched, 2, nullptr, &while_waiting) < 0) continue;
    if (watched[1].revents != 0 && !gate.ReadLimits()) watched[1].fd = -1;
    if (watched[0].revents == 0) continue;
    const int received = fuse_session_receive_buf(session, &buffer);
    if (received == -EINTR || received == -EAGAIN) continue;
    if (received <= 0) break;
    fuse_session_process_buf(session, &buffer);
  }
  gate.SetLimit(kNoLimit);
  std::free(buffer.mem);
}

}  // namespace

int main(int argc, char** argv) {
  const int source = OpenSource(argc, argv);
  if (source < 0) return 1;
  Gate gate(source);
  fuse_lowlevel_ops operations{};
  operations.lookup = Lookup;
  operations.getattr = Getattr;
  operations.open = Open;
  operations.read = Read;

  sigset_t ending;
  sigset_t before;
  sigemptyset(&ending);
  for (const int signal : {SIGHUP, SIGINT, SIGTERM}) sigaddset(&ending, signal);
  sigprocmask(SIG_BLOCK, &ending, &before);
  return MountAndServe(argv, operations, &gate,
                       [&](fuse_session* session) { Serve(session, gate, before); });
}

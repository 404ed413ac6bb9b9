// slow_server FILE MOUNTPOINT: shows FILE as MOUNTPOINT/model.safetensors, which can be mapped, behind
// a gate: a read that begins at the limit or beyond waits. A line on stdin is the new limit in bytes;
// at first, and once stdin ends, there is none. Prints "ready" once mounted, and "held" for a read
// that waits where none waited before. Ends with the mount, or on SIGINT, SIGTERM or SIGHUP.
#define FUSE_USE_VERSION 35
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr fuse_ino_t kFile = 2;
constexpr char kName[] = "model.safetensors";
constexpr off_t kNoLimit = std::numeric_limits<off_t>::max();

void Say(const char* word) {
  std::puts(word);
  std::fflush(stdout);
}

// The file and the reads that wait for it.
class Gate {
 public:
  explicit Gate(int source) : source_(source) {}

  int source() const { return source_; }

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
    const ssize_t count = pread(source_, buffer.data(), held.size, held.offset);
    if (count < 0) {
      fuse_reply_err(held.req, errno);
    } else {
      fuse_reply_buf(held.req, buffer.data(), static_cast<size_t>(count));
    }
  }

  const int source_;
  off_t limit_ = kNoLimit;
  std::vector<Held> held_;
  std::string line_;
};

Gate& GateOf(fuse_req_t req) { return *static_cast<Gate*>(fuse_req_userdata(req)); }

struct stat AttributesOf(fuse_req_t req, fuse_ino_t ino) {
  struct stat attributes {};
  fstat(GateOf(req).source(), &attributes);
  attributes.st_ino = ino;
  attributes.st_mode = ino == kFile ? S_IFREG | 0444 : S_IFDIR | 0555;
  return attributes;
}

void Lookup(fuse_req_t req, fuse_ino_t, const char* name) {
  if (std::strcmp(name, kName) != 0) {
    fuse_reply_err(req, ENOENT);
    return;
  }
  fuse_entry_param entry{};
  entry.ino = kFile;
  entry.attr = AttributesOf(req, kFile);
  fuse_reply_entry(req, &entry);
}

void Getattr(fuse_req_t req, fuse_ino_t ino, fuse_file_info*) {
  const struct stat attributes = AttributesOf(req, ino);
  fuse_reply_attr(req, &attributes, 0);
}

void Open(fuse_req_t req, fuse_ino_t, fuse_file_info* file) {
  if ((file->flags & O_ACCMODE) != O_RDONLY) {
    fuse_reply_err(req, EROFS);
    return;
  }
  file->keep_cache = 1;
  fuse_reply_open(req, file);
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
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s FILE MOUNTPOINT\n", argv[0]);
    return 1;
  }
  const int source = open(argv[1], O_RDONLY | O_CLOEXEC);
  if (source < 0) {
    std::perror(argv[1]);
    return 1;
  }
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

  char* words[] = {argv[0], nullptr};
  fuse_args arguments = FUSE_ARGS_INIT(1, words);
  fuse_session* session = fuse_session_new(&arguments, &operations, sizeof operations, &gate);
  if (session == nullptr || fuse_set_signal_handlers(session) != 0 ||
      fuse_session_mount(session, argv[2]) != 0) {
    return 1;
  }
  Say("ready");
  Serve(session, gate, before);
  fuse_session_unmount(session);
  fuse_remove_signal_handlers(session);
  fuse_session_destroy(session);
  close(source);
  return 0;
}

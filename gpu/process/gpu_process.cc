#include "gpu/process/gpu_process.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "core/base/error.h"

namespace safetensorfs {
namespace {

constexpr char kSubject[] = "the process that uses the GPU";
constexpr std::chrono::milliseconds kStartLimit(10000);

// What another user's process may know of our environment: where the driver is, and what it heeds.
bool IsForOthers(std::string_view variable) {
  constexpr std::array<std::string_view, 8> kPrefixes = {
      "LD_LIBRARY_PATH=", "PATH=", "LANG=", "CUDA_", "NVIDIA_", "ASAN_OPTIONS=", "TSAN_OPTIONS=",
      "SIMULATED_CUDA="  // tests/simulated_cuda
  };
  return std::ranges::any_of(
      kPrefixes, [variable](std::string_view prefix) { return variable.starts_with(prefix); });
}

std::vector<char*> Environment(bool is_for_others) {
  std::vector<char*> variables;
  for (char** at = environ; *at != nullptr; ++at) {
    if (!is_for_others || IsForOthers(*at)) variables.push_back(*at);
  }
  variables.push_back(nullptr);
  return variables;
}

// The next three run between fork and exec in a program with threads: system calls only, no locks,
// no memory.

bool BecomeUser(const Identity& identity) {
  // The calls themselves: the C library's would tell the threads that there are no more.
  return syscall(SYS_setgroups, identity.groups.size(), identity.groups.data()) == 0 &&
         syscall(SYS_setresgid, identity.gid, identity.gid, identity.gid) == 0 &&
         syscall(SYS_setresuid, identity.uid, identity.uid, identity.uid) == 0;
}

// Another user's process gets neither our terminal and logs nor our folder.
bool LeaveOurFiles() {
  // Not close-on-exec: it may be one of the three itself.
  const int null = open("/dev/null", O_RDWR);
  return null >= 0 && dup2(null, 0) >= 0 && dup2(null, 1) >= 0 && dup2(null, 2) >= 0 &&
         chdir("/") == 0;
}

// Returns with errno where the program cannot be executed; `failure` is a descriptor to say so on,
// which may be another by then.
void RunChild(int socket, int& failure, char* const* words, char* const* environment,
              const Identity* identity) {
  // Ctrl-C in the daemon's terminal is for the daemon, which ends its children in order.
  setsid();
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  // Above both places: dup2 to itself would leave the socket close-on-exec.
  constexpr int kFailure = GpuProcess::kSocket + 1;
  const int from = fcntl(socket, F_DUPFD, kFailure + 1);
  const int to = fcntl(failure, F_DUPFD, kFailure + 1);
  // libfuse leaves descriptors that are not close-on-exec; one of them kept open is a mount that
  // never ends.
  if (from >= 0 && to >= 0 && dup2(from, GpuProcess::kSocket) >= 0 &&
      dup3(to, kFailure, O_CLOEXEC) >= 0) {
    failure = kFailure;
    if (syscall(SYS_close_range, static_cast<unsigned>(kFailure + 1), ~0u, 0u) == 0 &&
        (identity == nullptr || (LeaveOurFiles() && BecomeUser(*identity)))) {
      execve("/proc/self/exe", words, environment);
    }
  }
}

// The errno that a child wrote before it gave up; nothing once the pipe is closed, as exec does.
std::optional<int> AwaitFailure(int pipe) {
  pollfd ready = {pipe, POLLIN, 0};
  int n;
  do {
    n = poll(&ready, 1, static_cast<int>(kStartLimit.count()));
  } while (n < 0 && errno == EINTR);
  if (n == 0) return ETIMEDOUT;  // the program's file system hangs
  int reason;
  const bool has_failed = read(pipe, &reason, sizeof reason) == sizeof reason;
  return has_failed ? std::optional(reason) : std::nullopt;
}

std::string DescribeEnd(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return "ended with status " + std::to_string(info.si_status);
  const char* const name = sigabbrev_np(info.si_status);
  return "was killed by " +
         (name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(info.si_status));
}

}  // namespace

Identity IdentityOf(uid_t uid, gid_t gid) {
  std::vector<char> text(16384);
  passwd entry;
  passwd* found = nullptr;
  if (getpwuid_r(uid, &entry, text.data(), text.size(), &found) != 0 || found == nullptr) {
    return {uid, gid, {gid}};
  }
  int count = 64;
  std::vector<gid_t> groups(static_cast<std::size_t>(count));
  if (getgrouplist(entry.pw_name, entry.pw_gid, groups.data(), &count) < 0) {
    groups.resize(static_cast<std::size_t>(count));
    getgrouplist(entry.pw_name, entry.pw_gid, groups.data(), &count);
  }
  groups.resize(static_cast<std::size_t>(count));
  return {uid, entry.pw_gid, std::move(groups)};
}

GpuProcess::GpuProcess(const std::vector<std::string>& words,
                       const std::optional<Identity>& identity) {
  std::array<int, 2> ends;
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    ThrowErrno(kSubject, "cannot make a socket pair");
  }
  socket_ = UniqueFd(ends[0]);
  const UniqueFd theirs(ends[1]);
  // Says why the program is not executed, and nothing where it is.
  std::array<int, 2> failure;
  if (pipe2(failure.data(), O_CLOEXEC) != 0) ThrowErrno(kSubject, "cannot make a pipe");
  const UniqueFd failed(failure[0]);
  UniqueFd to_fail(failure[1]);
  std::vector<char*> pointers = {const_cast<char*>(kName)};
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  const std::vector<char*> environment = Environment(identity.has_value());
  pid_ = fork();
  if (pid_ < 0) ThrowErrno(kSubject, "cannot be started");
  if (pid_ == 0) {
    int to = failure[1];
    RunChild(theirs.get(), to, pointers.data(), environment.data(),
             identity ? &*identity : nullptr);
    const int error = errno;
    _exit(write(to, &error, sizeof error) < 0 ? 126 : 127);
  }
  to_fail = UniqueFd();
  if (const auto reason = AwaitFailure(failed.get())) {
    kill(pid_, SIGKILL);
    // One that hangs cannot even be killed; it is init's when we end.
    waitpid(pid_, nullptr, *reason == ETIMEDOUT ? WNOHANG : 0);
    throw Error(EIO, std::string(kSubject) + ": cannot be started" +
                         (identity ? " as user " + std::to_string(identity->uid) : "") + ": " +
                         ErrnoText(*reason));
  }
  pidfd_ = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  if (!pidfd_) {
    const int error = errno;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    errno = error;
    ThrowErrno(kSubject, "cannot be watched");
  }
}

GpuProcess::~GpuProcess() {
  Kill();
  // One that hangs in the driver cannot even be killed; it is init's when we end.
  WaitForEnd(std::chrono::seconds(2));
}

void GpuProcess::Kill() {
  // The number may be another's by now; the descriptor is not.
  syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0u);
}

std::optional<std::string> GpuProcess::WaitForEnd(std::chrono::milliseconds patience) {
  if (end_) return end_;
  pollfd ended = {pidfd_.get(), POLLIN, 0};
  poll(&ended, 1, static_cast<int>(patience.count()));
  siginfo_t info = {};
  if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG) == 0 && info.si_pid == pid_)
    end_ = DescribeEnd(info);
  return end_;
}

}  // namespace safetensorfs

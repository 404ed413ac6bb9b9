#include "core/base/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "core/base/unique_fd.h"
#include "tests/catch.h"
#include "tests/unit/temporary_folder.h"

namespace safetensorfs {

TEST_CASE("A process is known by its threads and its program") {
  CHECK(ProcessOf(getpid()) == getpid());
  std::thread([] { CHECK(ProcessOf(gettid()) == getpid()); }).join();
  CHECK(ProgramOf(getpid()) == "core_tests");
  CHECK(ProgramOf(0x7FFFFFFF).empty());
}

TEST_CASE("Signals that end a process mean that it wants to end, others do not") {
  CHECK_FALSE(WantsToEnd(getpid()));
  CHECK(WantsToEnd(0));
  CHECK(WantsToEnd(0x7FFFFFFF));
  for (const int signal :
       {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGCHLD, SIGWINCH, SIGUSR1, SIGURG, SIGALRM}) {
    // A stopped process keeps a signal pending, as one does that waits in a write.
    const pid_t child = fork();
    if (child == 0) {
      raise(SIGSTOP);
      _exit(0);
    }
    waitpid(child, nullptr, WUNTRACED);
    kill(child, signal);
    const bool ends =
        signal == SIGHUP || signal == SIGINT || signal == SIGQUIT || signal == SIGTERM;
    CHECK(WantsToEnd(child) == ends);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
}

TEST_CASE("A signal that a process blocks does not end it") {
  sigset_t set, old;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &set, &old);
  pthread_kill(pthread_self(), SIGTERM);
  CHECK_FALSE(WantsToEnd(gettid()));
  const timespec none = {};
  sigtimedwait(&set, nullptr, &none);
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

TEST_CASE("A process that has been killed is dying of a signal, one that has ended is not") {
  CHECK_FALSE(IsDyingOfSignal(getpid()));
  for (const bool is_killed : {true, false}) {
    const pid_t child = fork();
    if (child == 0) {
      if (is_killed) pause();
      _exit(3);
    }
    if (is_killed) kill(child, SIGKILL);
    siginfo_t info;
    // Waited for, but not reaped: /proc still knows how it ended.
    waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
    CHECK(IsDyingOfSignal(child) == is_killed);
    waitpid(child, nullptr, 0);
  }
}

TEST_CASE("Who has a file open is found by its path and its file system") {
  const TemporaryFolder folder;
  const UniqueFd fd(open(folder.Write("handles/h.0", "x").c_str(), O_RDONLY | O_CLOEXEC));
  const auto ends = [](const std::string& path) { return path.ends_with("/handles/h.0"); };
  CHECK(std::ranges::count(ProcessesWithOpenFile(0, ends), getpid()) == 1);
  const dev_t device = DeviceOfPath(folder.path());
  CHECK(std::ranges::count(ProcessesWithOpenFile(device, ends), getpid()) == 1);
  CHECK(ProcessesWithOpenFile(device + 1, ends).empty());
  CHECK(ProcessesWithOpenFile(0, [](const std::string&) { return false; }).empty());
}

}  // namespace safetensorfs

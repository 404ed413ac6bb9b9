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
  // Blocked, a signal stays pending, as it does for a writer that the kernel makes wait.
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGCHLD, SIGWINCH, SIGUSR1, SIGURG}) {
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, signal);
    pthread_sigmask(SIG_BLOCK, &set, &old);
    pthread_kill(pthread_self(), signal);
    const bool ends =
        signal == SIGHUP || signal == SIGINT || signal == SIGQUIT || signal == SIGTERM;
    // Signals that are ignored by default are not kept.
    CHECK(WantsToEnd(gettid()) == ends);
    timespec none = {};
    sigtimedwait(&set, nullptr, &none);
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
  }
}

TEST_CASE("Who has a file open is found by the end of its path") {
  const TemporaryFolder folder;
  const UniqueFd fd(open(folder.Write("handles/h.0", "x").c_str(), O_RDONLY | O_CLOEXEC));
  const auto found = ProcessesWithOpenFile("/handles/h.0");
  CHECK(std::ranges::count(found, getpid()) == 1);
  CHECK(ProcessesWithOpenFile("/handles/h.1").empty());
}

}  // namespace safetensorfs

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

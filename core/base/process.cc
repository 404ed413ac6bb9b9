#include "core/base/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "core/base/unique_fd.h"

namespace safetensorfs {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t Bit(int signal) { return std::uint64_t{1} << (signal - 1); }

// The value of a line of /proc/PID/status; "" where there is none.
std::string StatusField(pid_t pid, std::string_view field) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  std::string line;
  while (std::getline(status, line)) {
    if (!line.starts_with(field)) continue;
    const std::size_t value = line.find_first_not_of(" \t", field.size());
    return value == line.npos ? "" : line.substr(value);
  }
  return "";
}

std::uint64_t SignalSet(pid_t pid, std::string_view field) {
  const std::string text = StatusField(pid, field);
  std::uint64_t set = 0;
  std::from_chars(text.data(), text.data() + text.size(), set, 16);
  return set;
}

bool HasOpenFile(const fs::path& process, dev_t device,
                 const std::function<bool(const std::string&)>& is_meant) {
  std::error_code error;
  for (fs::directory_iterator at(process / "fd", error), end; !error && at != end;
       at.increment(error)) {
    std::error_code gone;
    const std::string target = fs::read_symlink(at->path(), gone).string();
    if (gone || !is_meant(target)) continue;
    if (device == 0 || DeviceOfPath(at->path().string()) == device) return true;
  }
  return false;
}

}  // namespace

pid_t ProcessOf(pid_t thread) {
  // A pidfd is given for the first thread of a process only; asking for one is far cheaper than
  // having /proc write a page of text.
  const UniqueFd first(static_cast<int>(syscall(SYS_pidfd_open, thread, 0)));
  if (first) return thread;
  const std::string text = StatusField(thread, "Tgid:");
  pid_t process = thread;
  std::from_chars(text.data(), text.data() + text.size(), process);
  return process;
}

std::string ProgramOf(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/comm");
  std::string name;
  std::getline(file, name);
  return name;
}

bool WantsToEnd(pid_t thread) {
  if (thread == 0 || StatusField(thread, "Pid:").empty()) return true;
  constexpr std::uint64_t kEnding =
      Bit(SIGHUP) | Bit(SIGINT) | Bit(SIGQUIT) | Bit(SIGKILL) | Bit(SIGTERM);
  const std::uint64_t pending = SignalSet(thread, "SigPnd:") | SignalSet(thread, "ShdPnd:");
  return (pending & ~SignalSet(thread, "SigBlk:") & kEnding) != 0;
}

bool IsDyingOfSignal(pid_t thread) {
  // proc(5): field 9 of stat is the kernel's flags, the last one the exit status as wait(2) gives
  // it.
  constexpr unsigned long kExiting = 4;
  constexpr std::size_t kFlags = 9 - 3;
  std::ifstream file("/proc/" + std::to_string(thread) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(')');
  if (name_end == text.npos) return true;
  std::istringstream fields(text.substr(name_end + 1));
  const std::vector<std::string> values{std::istream_iterator<std::string>(fields), {}};
  if (values.size() <= kFlags) return true;
  return (std::stoul(values[kFlags]) & kExiting) != 0 && WIFSIGNALED(std::stoi(values.back()));
}

dev_t DeviceOfPath(const std::string& path) {
  struct statx status;
  // A file system that this process serves could not answer it.
  if (statx(AT_FDCWD, path.c_str(), AT_STATX_DONT_SYNC, STATX_TYPE, &status) != 0) return 0;
  return makedev(status.stx_dev_major, status.stx_dev_minor);
}

std::vector<pid_t> ProcessesWithOpenFile(dev_t device,
                                         const std::function<bool(const std::string&)>& is_meant) {
  std::vector<pid_t> found;
  std::error_code error;
  for (fs::directory_iterator at("/proc", error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    pid_t process = 0;
    const auto [stop, failure] = std::from_chars(name.data(), name.data() + name.size(), process);
    if (failure != std::errc() || stop != name.data() + name.size()) continue;
    if (HasOpenFile(at->path(), device, is_meant)) found.push_back(process);
  }
  return found;
}

}  // namespace safetensorfs

#include "process_identity.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <sstream>
#include <string>

namespace simulated_cuda {
namespace {

std::string ReadStart(const std::string& path) {
  int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return {};
  std::array<char, 1024> text;
  ssize_t bytes = read(descriptor, text.data(), text.size());
  close(descriptor);
  return bytes > 0 ? std::string(text.data(), static_cast<size_t>(bytes)) : std::string();
}

std::optional<uint64_t> StartTicksIn(const std::string& stat) {
  // The program's name, in brackets, may hold anything.
  size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(stat.substr(name_end + 1));
  std::string state;
  fields >> state;
  if (state == "Z" || state == "X") return std::nullopt;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  uint64_t ticks = 0;
  fields >> ticks;
  return fields ? std::optional(ticks) : std::nullopt;
}

}  // namespace

ProcessIdentity OwnIdentity() {
  struct stat status = {};
  stat("/proc/self/ns/pid", &status);
  return {.pid = static_cast<uint64_t>(getpid()),
          .start_ticks = StartTicksIn(ReadStart("/proc/self/stat")).value_or(0),
          .pid_namespace = status.st_ino};
}

std::optional<uint64_t> StartTicks(uint64_t pid) {
  return StartTicksIn(ReadStart("/proc/" + std::to_string(pid) + "/stat"));
}

}  // namespace simulated_cuda

#include "core/device/memory_limits.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "core/base/error.h"
#include "core/base/text.h"

namespace safetensorfs {
namespace {

// CAP_IPC_LOCK frees a process from RLIMIT_MEMLOCK (mlock(2)).
bool MayLockAnything() {
  constexpr int kCapIpcLock = 14;
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (word != "CapEff:") continue;
    status >> word;
    return (std::stoull(word, nullptr, 16) >> kCapIpcLock & 1) != 0;
  }
  return false;
}

// The least memory.max of this process's cgroup and those above it (cgroup v2): a container that
// locks more is killed.
std::uint64_t CgroupLimit() {
  namespace fs = std::filesystem;
  std::ifstream membership("/proc/self/cgroup");
  std::string line;
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  while (std::getline(membership, line)) {
    if (!line.starts_with("0::/")) continue;
    const fs::path top = "/sys/fs/cgroup";
    for (fs::path group = line.substr(4);; group = group.parent_path()) {
      std::ifstream file(top / group / "memory.max");
      std::uint64_t limit = 0;
      if (file >> limit) least = std::min(least, limit);  // "max" is no number
      if (group.empty()) break;
    }
  }
  return least;
}

std::string Figures(std::uint64_t needed, std::uint64_t held) {
  return "needs " + Grouped(needed) + " more bytes locked, holds " + Grouped(held);
}

}  // namespace

MemoryStatus ReadMemoryStatus() {
  MemoryStatus memory;
  std::ifstream status("/proc/meminfo");
  std::string word;
  while (status >> word) {
    std::uint64_t* field = word == "MemTotal:"       ? &memory.total_nbytes
                           : word == "MemAvailable:" ? &memory.available_nbytes
                                                     : nullptr;
    if (field != nullptr && status >> *field) *field *= 1024;
  }
  return memory;
}

void CheckMemoryLimits(std::uint64_t needed, std::uint64_t held) {
  if (needed == 0) return;
  const MemoryStatus memory = ReadMemoryStatus();
  if (needed > memory.available_nbytes) {
    throw Error(ENOMEM, Figures(needed, held) + "; free are " + Grouped(memory.available_nbytes));
  }
  const std::uint64_t cgroup = CgroupLimit();
  if (needed + held > cgroup) {
    throw Error(ENOMEM, Figures(needed, held) + "; memory.max of the cgroup is " + Grouped(cgroup));
  }
  rlimit limit;
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_MEMLOCK, &limit);
  if (needed + held > limit.rlim_max && !MayLockAnything()) {
    throw Error(ENOMEM, Figures(needed, held) + "; RLIMIT_MEMLOCK allows " +
                            Grouped(limit.rlim_max) +
                            ": raise it with `ulimit -l`, LimitMEMLOCK= of a systemd unit or "
                            "/etc/security/limits.conf");
  }
}

}  // namespace safetensorfs

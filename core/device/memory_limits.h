#pragma once

#include <cstdint>

namespace safetensorfs {

/// The machine's memory, in bytes, as /proc/meminfo says.
struct MemoryStatus {
  std::uint64_t total_nbytes = 0;
  std::uint64_t available_nbytes = 0;  // without pushing anything out to swap
};
MemoryStatus ReadMemoryStatus();

/// Throws Error (ENOMEM) if this process may not lock `needed` more bytes beside the `held` it has:
/// by RLIMIT_MEMLOCK, whose soft limit it raises as far as it may, by its cgroup's memory.max, or
/// by the memory that there is.
void CheckMemoryLimits(std::uint64_t needed, std::uint64_t held);

}  // namespace safetensorfs

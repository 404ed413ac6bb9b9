#ifndef SAFETENSORFS_TESTS_SIMULATED_CUDA_PROCESS_IDENTITY_H_
#define SAFETENSORFS_TESTS_SIMULATED_CUDA_PROCESS_IDENTITY_H_

#include <cstdint>
#include <optional>

namespace simulated_cuda {

// A process number is used again; with the time of its start it is not.
struct ProcessIdentity {
  uint64_t pid;
  uint64_t start_ticks;    // field 22 of /proc/PID/stat
  uint64_t pid_namespace;  // inode of /proc/PID/ns/pid
};

ProcessIdentity OwnIdentity();

// Nothing where the process is gone; a zombie is gone.
std::optional<uint64_t> StartTicks(uint64_t pid);

inline bool IsAlive(uint64_t pid, uint64_t start_ticks) { return StartTicks(pid) == start_ticks; }

}  // namespace simulated_cuda

#endif  // SAFETENSORFS_TESTS_SIMULATED_CUDA_PROCESS_IDENTITY_H_

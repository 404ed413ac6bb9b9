#ifndef SAFETENSORFS_TESTS_SIMULATED_CUDA_QUEUE_H_
#define SAFETENSORFS_TESTS_SIMULATED_CUDA_QUEUE_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "memory.h"

namespace simulated_cuda {

class Driver;

enum class Direction { kHostToDevice, kDeviceToHost };

struct Copy {
  Direction direction;
  void* to;
  const void* from;
  size_t bytes;
  std::shared_ptr<DeviceBuffer> device;
  std::shared_ptr<HostRange> host;  // null: pageable
  std::chrono::steady_clock::time_point not_before = {};
};

// A device's ability to copy, for all queues of its context. Thread-safe.
class CopyEngine {
 public:
  explicit CopyEngine(Driver& driver) : driver_(driver) {}

  // Reads the source and writes the destination, when it is time; takes the copy off the counts
  // that its memory has. In a poisoned process it moves nothing.
  void Execute(const Copy& copy);

 private:
  void WaitForTime(const Copy& copy);
  void WaitForBandwidth(const Copy& copy);

  Driver& driver_;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point busy_until_[2] = {};  // by direction
};

// Executes copies one after another, in a thread of its own that starts with the first.
//
// Whoever learns that a copy has executed learns it under the mutex, so that ThreadSanitizer sees
// that the copy was before; this library itself is not instrumented. A queue lives as long as the
// process: its thread may outlast the stream. Thread-safe.
class Queue {
 public:
  explicit Queue(CopyEngine& engine) : engine_(engine) {}

  // The copy is counted in its memory's `copies`.
  void Issue(Copy copy);

  // How many copies were issued; what Reached and Wait take.
  uint64_t issued();
  bool Reached(uint64_t copies);
  void Wait(uint64_t copies);
  void WaitForAll() { Wait(issued()); }

  // Ends the thread once all has executed; nothing may be issued any more.
  void Close();

 private:
  void Start();
  void Run();

  CopyEngine& engine_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable executed_changed_;
  std::deque<Copy> copies_;
  uint64_t issued_ = 0;
  uint64_t executed_ = 0;
  int waiting_ = 0;
  bool started_ = false;
  bool asleep_ = false;
  bool closed_ = false;
};

}  // namespace simulated_cuda

#endif  // SAFETENSORFS_TESTS_SIMULATED_CUDA_QUEUE_H_

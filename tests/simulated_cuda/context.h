#ifndef SAFETENSORFS_TESTS_SIMULATED_CUDA_CONTEXT_H_
#define SAFETENSORFS_TESTS_SIMULATED_CUDA_CONTEXT_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "driver_api.h"
#include "memory.h"
#include "queue.h"

namespace simulated_cuda {

class Driver;

// A device's primary context in this process. The object lives as long as the process, so that
// an old handle can be refused. Thread-safe.
class Context {
 public:
  // `device` is the number before CUDA_VISIBLE_DEVICES.
  Context(Driver& driver, size_t device) : driver_(driver), device_(device), engine_(driver) {}

  size_t device() const { return device_; }
  bool active() const { return active_; }

  CUresult Retain();

  // The last one frees everything that was made in the context.
  CUresult Release();

  // Waits for all streams.
  void Synchronize();

  Queue& null_queue();
  Queue& NewQueue();
  CopyEngine& engine() { return engine_; }

  CUresult Allocate(size_t bytes, CUdeviceptr* address);

  // For memory that is out of the driver's maps already: counts what it should not be freed
  // under, waits for the copies, and takes it out of the accounts.
  void Free(DeviceBuffer& buffer);
  void CloseImport(DeviceBuffer& buffer);
  void EndHostRange(HostRange& range);

 private:
  void DestroyEverything();

  Driver& driver_;
  size_t device_;
  CopyEngine engine_;
  std::mutex mutex_;  // guards what follows; taken before any other
  int retained_ = 0;
  std::atomic<bool> active_ = false;
  std::mutex queues_mutex_;
  std::vector<std::unique_ptr<Queue>> queues_;  // all there ever were
  Queue* null_queue_ = nullptr;
};

}  // namespace simulated_cuda

#endif  // SAFETENSORFS_TESTS_SIMULATED_CUDA_CONTEXT_H_

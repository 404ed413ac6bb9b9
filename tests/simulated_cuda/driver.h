#ifndef SAFETENSORFS_TESTS_SIMULATED_CUDA_DRIVER_H_
#define SAFETENSORFS_TESTS_SIMULATED_CUDA_DRIVER_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "configuration.h"
#include "context.h"
#include "driver_api.h"
#include "handles.h"
#include "memory.h"
#include "state_file.h"

namespace simulated_cuda {

// The driver in this process. It is made at the first call and never freed, as its threads run
// until the process ends. Thread-safe.
class Driver {
 public:
  static Driver& Get();

  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // Whether SIMULATED_CUDA is set; without it only configuration() may be used.
  bool has_simulation() const { return !folder_.empty(); }
  StateFile& state() { return *state_; }

  // References stay valid as long as the process.
  const Configuration& configuration() const { return *configuration_.load(); }
  const DeviceSettings& settings(size_t device) const;

  // Reads `config` where it has changed; the second one looks at most every 5 ms, or at once where
  // the state says that there is another.
  void RefreshConfiguration();
  void RefreshConfigurationNowAndThen();

  CUresult Initialize();
  bool initialized() const { return initialized_; }
  bool forked() const { return forked_; }

  // After a sticky error.
  void Poison();
  bool poisoned() const { return poisoned_; }

  // The contexts of the devices that this process sees, by ordinal.
  const std::vector<std::unique_ptr<Context>>& contexts() const { return contexts_; }

  // The calling thread's.
  static Context*& CurrentContext();

  // When a copy that is issued now may start.
  std::chrono::steady_clock::time_point NextCopyTime();

  const ProcessIdentity& identity() const { return identity_; }

  RangeMap<DeviceBuffer> memory;
  RangeMap<HostRange> host_memory;
  HandleTable<Stream> streams;
  HandleTable<Event> events;
  std::mutex imports_mutex;  // opening and closing handles

 private:
  Driver();

  std::vector<size_t> VisibleDevices() const;

  std::string folder_;
  std::unique_ptr<StateFile> state_;
  const Configuration* initial_ = nullptr;
  ProcessIdentity identity_ = {};
  std::vector<std::unique_ptr<Context>> contexts_;
  std::mutex initialize_mutex_;
  std::atomic<bool> initialized_ = false;
  std::atomic<bool> forked_ = false;
  std::atomic<bool> poisoned_ = false;
  std::atomic<uint64_t> copies_issued_ = 0;

  // What tells one version of the file from another.
  struct FileVersion {
    uint64_t inode = 0;
    int64_t modified_ns = 0;
    int64_t changed_ns = 0;
    int64_t bytes = -1;
    bool operator==(const FileVersion&) const = default;
  };

  std::mutex configuration_mutex_;  // guards what follows
  FileVersion version_;
  std::atomic<uint64_t> announced_ = 0;  // StateFile::configuration() of the latest reading
  std::vector<std::unique_ptr<const Configuration>> all_configurations_;
  std::atomic<const Configuration*> configuration_ = nullptr;
  std::atomic<int64_t> looked_at_ns_ = 0;
};

}  // namespace simulated_cuda

#endif  // SAFETENSORFS_TESTS_SIMULATED_CUDA_DRIVER_H_

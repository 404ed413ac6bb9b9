#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/device/device.h"
#include "gpu/device/slab_plan.h"
#include "gpu/device/worker_connection.h"
#include "gpu/process/message.h"

namespace safetensorfs {

struct CudaDeviceOptions {
  /// Whom its worker runs as; the daemon's own user where there is none.
  std::optional<Identity> identity;
  /// A call into the driver that takes longer hangs, and costs the worker its life.
  std::chrono::milliseconds call_limit{30000};
  /// How long a worker may take to get ready: the driver's start, and the context's.
  std::chrono::milliseconds start_limit{120000};
  /// How long a cancelled job is waited for.
  std::chrono::milliseconds cancel_limit{2000};
  /// How long a worker may take to free memory before it is given up.
  std::chrono::milliseconds free_limit{10000};
  /// How long a worker without slabs lives.
  std::chrono::milliseconds idle_limit{5000};
};

/// A device "cuda:N". Tensors live in slabs, in the memory of a worker process that is started when
/// the first is loaded and ends some seconds after the last has gone; no other part of the daemon
/// meets the driver. A worker that fails takes its tensors with it and is replaced at the next
/// load.
class CudaDevice : public Device {
 public:
  CudaDevice(int ordinal, DeviceFacts facts, CudaDeviceOptions options);
  ~CudaDevice() override;

  const std::string& name() const override { return name_; }
  bool IsAlsoCalled(std::string_view word) const override { return word == facts_.uuid; }
  void Load(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors,
            const LoadHints& hints, Progress& progress, std::stop_token stop) override;
  std::uint64_t Unload(const Checkpoint& checkpoint,
                       std::span<const std::uint32_t> tensors) override;
  void Verify(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors,
              Progress& progress, std::stop_token stop) override;
  void Read(const Checkpoint& checkpoint, std::uint32_t tensor, std::uint64_t offset,
            std::uint64_t size, ReadReply reply) override;
  std::string HandleFields(const Checkpoint& checkpoint, std::uint32_t tensor) const override;
  std::uint64_t LeaseUnit(const Checkpoint& checkpoint, std::uint32_t tensor) const override;
  std::vector<std::uint64_t> SlabNumbers(const Checkpoint& checkpoint) const override;
  std::optional<Slab> FindSlab(const Checkpoint& checkpoint, std::uint64_t number) const override;
  DeviceInfo Info() const override;
  void OnLost(Lost lost) override { lost_ = std::move(lost); }

 private:
  class Busy;
  // Where a tensor is.
  struct Location {
    std::uint64_t slab = 0;  // 0: nowhere
    std::uint64_t offset = 0;
  };
  struct LoadedSlab {
    const Checkpoint* checkpoint;
    std::uint64_t nbytes;
    std::string fields;                  // for handles
    std::vector<std::uint32_t> tensors;  // that were loaded into it, by offset
    std::size_t left;                    // of them that still are
  };

  std::shared_ptr<WorkerConnection> StartWorker(std::stop_token stop);
  std::shared_ptr<WorkerConnection> worker() const;
  void WorkerEnded(std::uint64_t number, const std::string& reason);
  void Record(const Checkpoint& checkpoint, const SlabPlan& plan, const Done& done);
  Location LocationOf(const Checkpoint& checkpoint, std::uint32_t tensor) const;
  std::string ExportFields(const SlabSize& slab, const Done& done, std::size_t number) const;
  void KeepHouse(std::stop_token stop);

  const std::string name_;
  const int ordinal_;
  const DeviceFacts facts_;
  const CudaDeviceOptions options_;
  Lost lost_;

  std::uint64_t next_slab_ = 1;  // the queue's thread only

  mutable std::mutex mutex_;  // guards what follows; never held while the worker is waited for
  std::condition_variable_any changed_;
  std::uint64_t workers_ = 0;  // started so far
  std::shared_ptr<WorkerConnection> worker_;
  std::optional<Hello> hello_;                          // the worker's
  std::vector<std::shared_ptr<WorkerConnection>> old_;  // ended, to be destroyed
  bool is_announcing_ = false;                          // a loss
  bool is_busy_ = false;                                // a job runs
  std::chrono::steady_clock::time_point idle_since_;
  std::map<std::uint64_t, LoadedSlab> slabs_;
  std::map<const Checkpoint*, std::vector<Location>> locations_;

  // From the first worker on (the queue's thread starts it): retires an idle worker, and
  // destroys those that ended.
  std::jthread housekeeper_;
};

}  // namespace safetensorfs

#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/control/control_command.h"
#include "core/control/tensor_selection.h"
#include "core/device/device.h"
#include "core/device/device_queue.h"
#include "core/device/loaded_tensors.h"
#include "core/tree/source_tree.h"

namespace safetensorfs {

/// What a command asks of one device.
struct DeviceCommand {
  Verb verb = Verb::kLoad;
  std::uint32_t place = 0;  // number of the checkpoint
  pid_t pid = 0;            // who asks
  /// What is meant, chosen when the command's turn comes, by a selector that outlives the job:
  /// among all tensors for a load, which skips those that are there, else among what is loaded.
  std::shared_ptr<const std::vector<Glob>> patterns;
  const TensorSelector* selector = nullptr;
  LoadHints hints;
};

/// A device with its queue and what it has loaded of all checkpoints. Thread-safe.
class DeviceHost {
 public:
  /// `source` must outlive it.
  DeviceHost(std::unique_ptr<Device> device, const SourceTree& source);

  const std::string& name() const { return device_->name(); }
  bool IsCalled(std::string_view word) const {
    return word == name() || device_->IsAlsoCalled(word);
  }

  /// Queues a command. `done` is called once, from another thread.
  std::shared_ptr<Job> Submit(DeviceCommand command, std::function<void(Outcome)> done);
  void Cancel(const std::shared_ptr<Job>& job) { queue_.Cancel(job); }
  /// Cancels everything and waits until it has ended.
  void Stop() { queue_.Stop(); }

  /// Unloads one load of a tensor, unless a command runs or waits: then `done` gets EBUSY at once.
  void Unlink(const LoadedTensors::Instance& instance, pid_t pid,
              std::function<void(Outcome)> done);

  /// The JSON of a handle: the tensor's name, dtype, shape and nbytes and how to attach to it.
  std::string HandleText(const LoadedTensors::Instance& instance) const;
  /// Takes a lease for a process; nothing if that load is gone.
  std::optional<std::uint64_t> Lease(const LoadedTensors::Instance& instance, pid_t pid);
  /// Reads back; `reply` gets ESTALE where that load is gone.
  void Read(const LoadedTensors::Instance& instance, std::uint64_t offset, std::uint64_t size,
            Device::ReadReply reply);

  /// The device as JSON: name, uuid, total, free and held bytes, leases, and what is loaded of one
  /// checkpoint or, without a number, of all.
  std::string InfoText(std::optional<std::uint32_t> place) const;

  /// The mount's st_dev, by which its open handles are told from those of other mounts.
  void SetMountDevice(dev_t device) { mount_device_ = device; }

  LoadedTensors& loaded() { return loaded_; }
  const LoadedTensors& loaded() const { return loaded_; }
  std::vector<std::shared_ptr<Job>> Jobs() const { return queue_.Jobs(); }

 private:
  std::string RunLoad(Job& job, const DeviceCommand& command);
  std::string RunUnload(Job& job, const DeviceCommand& command);
  std::string RunVerify(Job& job, const DeviceCommand& command);
  std::string Unload(std::uint32_t place, const std::vector<std::uint32_t>& tensors);
  std::vector<std::uint32_t> Select(Job& job, const DeviceCommand& command) const;
  std::uint64_t UnitOf(std::uint32_t place, std::uint32_t tensor) const;
  std::string NamesOf(std::uint32_t place, const std::vector<std::uint32_t>& tensors,
                      const std::vector<Holder>& openers) const;
  std::vector<Holder> FindHolders(std::uint32_t place,
                                  const std::vector<std::uint32_t>& tensors) const;
  const Checkpoint& CheckpointAt(std::uint32_t place) const {
    return *source_.checkpoints[place].checkpoint;
  }

  std::atomic<dev_t> mount_device_ = 0;
  const SourceTree& source_;
  LoadedTensors loaded_;
  std::vector<std::atomic<std::uint64_t>> loaded_nbytes_;  // by place
  std::unique_ptr<Device> device_;                         // after what it may call back
  DeviceQueue queue_;                                      // last: its jobs use the rest
};

}  // namespace safetensorfs

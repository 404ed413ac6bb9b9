#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
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
  /// `source` must outlive it. `log` is told, from any thread, when the device loses what is
  /// loaded.
  DeviceHost(std::unique_ptr<Device> device, const SourceTree& source,
             std::function<void(const std::string& line)> log);

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

  /// The numbers of the slabs of a checkpoint, ascending; some may hold nothing that is loaded yet.
  std::vector<std::uint64_t> SlabNumbers(std::uint32_t place) const {
    return device_->SlabNumbers(CheckpointAt(place));
  }
  /// The load of the first tensor in a slab; nothing where none is loaded. It stands for the
  /// slab: as long as it is loaded that is where it is, and its lease is one on the slab.
  std::optional<LoadedTensors::Instance> FindInSlab(std::uint32_t place,
                                                    std::uint64_t number) const;
  /// The JSON of the slab that a load is in, with the tensors that are loaded now: the text does
  /// not change while the slab is leased. Throws Error (ESTALE) where the load is gone.
  std::shared_ptr<const std::string> SlabText(const LoadedTensors::Instance& instance) const;

  /// Takes a lease on a tensor and its slab for a process; nothing if that load is gone.
  std::optional<std::uint64_t> Lease(const LoadedTensors::Instance& instance, pid_t pid);
  /// Reads back; `reply` gets ESTALE where that load is gone.
  void Read(const LoadedTensors::Instance& instance, std::uint64_t offset, std::uint64_t size,
            Device::ReadReply reply);

  /// The device as JSON: name, uuid, total, free and held bytes, leases, and what is loaded of one
  /// checkpoint or, without a number, of all.
  std::string InfoText(std::optional<std::uint32_t> place) const;
  /// What was lost when the device failed last: "lost 2 tensors, 48 bytes: the driver died".
  std::optional<std::string> LastFailure() const;

  /// The mount's st_dev, by which its open handles are told from those of other mounts.
  void SetMountDevice(dev_t device) { mount_device_ = device; }

  LoadedTensors& loaded() { return loaded_; }
  const LoadedTensors& loaded() const { return loaded_; }
  std::vector<std::shared_ptr<Job>> Jobs() const { return queue_.Jobs(); }

 private:
  void Lose(const std::string& reason);
  void ForgetSlabText();
  std::string Run(Job& job, const DeviceCommand& command);
  std::string RunLoad(Job& job, const DeviceCommand& command, std::uint64_t losses);
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

  // The text of the slab that was asked for last: reads of one come in many parts.
  struct RenderedSlab {
    std::uint64_t serial = 0;
    std::uint64_t changes = 0;  // LoadedTensors::changes() before it was rendered
    std::shared_ptr<const std::string> text;
  };

  std::atomic<dev_t> mount_device_ = 0;
  const SourceTree& source_;
  const std::function<void(const std::string&)> log_;
  LoadedTensors loaded_;
  mutable std::mutex slab_mutex_;  // guards rendered_slab_
  mutable RenderedSlab rendered_slab_;
  mutable std::mutex loss_mutex_;  // guards what follows; before LoadedTensors' own
  std::string last_failure_;
  std::string loss_reason_;
  std::unique_ptr<Device> device_;  // after what it may call back
  DeviceQueue queue_;               // last: its jobs use the rest
};

}  // namespace safetensorfs

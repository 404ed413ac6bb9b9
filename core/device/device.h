#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "core/format/checkpoint.h"
#include "core/tree/pieces.h"

namespace safetensorfs {

/// How far a job is, in bytes. Written by the job, read by anyone.
struct Progress {
  std::atomic<std::uint64_t> done = 0;
  std::atomic<std::uint64_t> total = 0;
};

/// What a device says of itself. Sizes in bytes.
struct DeviceInfo {
  std::string uuid;     // empty where there is none
  std::string product;  // "NVIDIA H200"; empty where there is none
  std::uint64_t total_nbytes = 0;
  std::optional<std::uint64_t> free_nbytes;  // nothing where asking would cost device memory
  std::uint64_t held_nbytes = 0;  // taken by what is loaded, neighbours and padding included
};

/// What a load's caller knows and a device may use.
struct LoadHints {
  /// Other devices load the same tensors now: what is read from a disk should be left in memory.
  bool is_one_of_several = false;
};

/// Memory that holds several tensors and can only be freed, and attached, as a whole. Nothing is
/// added to it after the load that made it.
struct Slab {
  struct Tensor {
    std::uint32_t tensor;
    std::uint64_t offset;  // bytes from the start of the slab
  };
  std::vector<Tensor> tensors;  // those that are loaded, by offset
  std::string fields;           // what attaches to all of it, see Device::HandleFields
};

/// The numbers of slabs and lease units (Device::LeaseUnit) are below this.
inline constexpr std::uint64_t kLeaseUnits = std::uint64_t{1} << 40;

/// Memory that tensors are loaded into. One checkpoint is told from another by its address.
///
/// Load, Unload and Verify are called by one thread at a time, the device's queue (DeviceQueue),
/// and may take as long as they need; a device whose driver lives in another process waits for it
/// here. They must return soon after `stop` is requested, whatever that process does. Read,
/// HandleFields, LeaseUnit, FindSlab, SlabNumbers and Info may be called by any thread meanwhile
/// and must not wait for the queue.
class Device {
 public:
  virtual ~Device() = default;

  /// As PyTorch spells it: "cpu", "cuda:0".
  virtual const std::string& name() const = 0;
  /// True for other spellings that commands may use, such as "GPU-<uuid>".
  virtual bool IsAlsoCalled(std::string_view) const { return false; }

  /// Loads tensors that are not loaded, all or nothing; `progress.total` is their bytes. Throws
  /// Error: ENOMEM with needed, free and held bytes, ESTALE for a source that changed, EIO for one
  /// that fails, EINTR once `stop` is requested; what it took is given back then.
  virtual void Load(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors,
                    const LoadHints& hints, Progress& progress, std::stop_token stop) = 0;

  /// Lets go of loaded tensors that nobody uses; those that were lost meanwhile it passes over.
  /// Returns the bytes that are free now: less than the tensors' where neighbours hold the same
  /// memory.
  virtual std::uint64_t Unload(const Checkpoint& checkpoint,
                               std::span<const std::uint32_t> tensors) = 0;

  /// Compares loaded tensors with their sources; `progress.total` is their bytes. Throws Error: EIO
  /// that names the first tensor that differs, ESTALE, EINTR.
  virtual void Verify(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors,
                      Progress& progress, std::stop_token stop) = 0;

  /// Called once, from any thread, with 0 and the bytes, or a positive errno.
  using ReadReply = std::function<void(int error, const Pieces& pieces)>;
  /// Reads back bytes of a loaded tensor; the range lies within it.
  virtual void Read(const Checkpoint& checkpoint, std::uint32_t tensor, std::uint64_t offset,
                    std::uint64_t size, ReadReply reply) = 0;

  /// What a handle says beside the tensor's own fields, as members of a JSON object:
  /// "\"export\":\"mmap\",\"path\":...".
  virtual std::string HandleFields(const Checkpoint& checkpoint, std::uint32_t tensor) const = 0;

  /// Tensors of one unit share memory that can only be freed as a whole: a lease on one keeps all.
  /// The number of the slab where the device has slabs. Of a tensor that is not loaded: any number.
  virtual std::uint64_t LeaseUnit(const Checkpoint& checkpoint, std::uint32_t tensor) const = 0;

  /// The numbers of the slabs that hold tensors of a checkpoint, ascending; a number is below 2^40
  /// and is never used twice. A slab holds tensors of one checkpoint.
  virtual std::vector<std::uint64_t> SlabNumbers(const Checkpoint&) const { return {}; }
  /// A slab of that checkpoint; nothing where it is gone.
  virtual std::optional<Slab> FindSlab(const Checkpoint&, std::uint64_t) const { return {}; }

  virtual DeviceInfo Info() const = 0;

  /// Called, from any thread, when all that was loaded is gone because the device failed, with a
  /// sentence that says how. A Load, Unload or Verify during which that happens counts as failed,
  /// and ends after this call. What comes after goes to a device that works again, if it can.
  using Lost = std::function<void(const std::string& reason)>;
  virtual void OnLost(Lost) {}
};

}  // namespace safetensorfs

#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace safetensorfs {

/// Who keeps a tensor from being unloaded.
struct Holder {
  pid_t pid;
  std::string program;
};

/// Which tensors a device has loaded, each load under a serial number of its own, and the leases on
/// them. A tensor is known by its checkpoint's number (`place`) and its own. Thread-safe.
class LoadedTensors {
 public:
  struct Instance {
    std::uint64_t serial;  // from 1; never used twice
    std::uint32_t place;
    std::uint32_t tensor;
  };

  struct Amount {
    std::uint64_t tensors = 0;
    std::uint64_t nbytes = 0;
    bool operator==(const Amount&) const = default;
  };

  using NbytesOf = std::function<std::uint64_t(std::uint32_t place, std::uint32_t tensor)>;
  /// `tensor_counts`: how many tensors each checkpoint has; `nbytes_of`: the size of one in bytes.
  LoadedTensors(std::vector<std::uint32_t> tensor_counts, NbytesOf nbytes_of);

  /// How often everything was lost; ask before a load.
  std::uint64_t losses() const;
  /// False, and nothing added, where everything was lost since `losses` was asked.
  bool Add(std::uint32_t place, std::span<const std::uint32_t> tensors, std::uint64_t losses = 0);

  /// Removes tensors of which no lease unit is leased. Waits for leases to end until `patience` is
  /// over, since the kernel reports a close(2) only after it has returned. Where some are left,
  /// removes nothing and returns their holders. `unit_of` gives a tensor's Device::LeaseUnit.
  std::vector<Holder> Remove(std::uint32_t place, std::span<const std::uint32_t> tensors,
                             const std::function<std::uint64_t(std::uint32_t)>& unit_of,
                             std::chrono::milliseconds patience);
  /// Forgets everything, leases too: the device lost it. Returns how much that was.
  Amount Clear();

  bool Has(std::uint32_t place, std::uint32_t tensor) const;
  /// Those of `tensors` that are not loaded.
  std::vector<std::uint32_t> Missing(std::uint32_t place,
                                     std::span<const std::uint32_t> tensors) const;
  std::optional<Instance> Find(std::uint32_t place, std::uint32_t tensor) const;
  std::optional<Instance> FindSerial(std::uint64_t serial) const;
  /// The first loaded tensor of a checkpoint numbered `from` or higher.
  std::optional<Instance> Next(std::uint32_t place, std::uint32_t from) const;
  /// What is loaded of a checkpoint.
  Amount Total(std::uint32_t place) const;
  /// Grows whenever something is loaded, removed or lost.
  std::uint64_t changes() const;

  /// Takes a lease on the unit of a loaded tensor; nothing if that load is gone. Give it back with
  /// Release.
  std::optional<std::uint64_t> Lease(std::uint64_t serial, std::uint64_t unit, Holder holder);
  void Release(std::uint64_t lease);
  std::uint64_t LeaseCount() const;

 private:
  struct LeaseInfo {
    std::uint64_t unit;
    Holder holder;
  };
  // Tensors that were loaded together have serials in a row.
  struct LoadRecord {
    std::uint32_t place;
    std::vector<std::uint32_t> tensors;
    std::size_t left;  // of them that are still loaded
  };

  std::uint64_t SerialLocked(std::uint32_t place, std::uint32_t tensor) const;  // 0: not loaded
  std::optional<Instance> FindSerialLocked(std::uint64_t serial) const;

  mutable std::mutex mutex_;  // guards all
  std::condition_variable released_;
  const std::vector<std::uint32_t> tensor_counts_;
  const NbytesOf nbytes_of_;
  std::vector<std::vector<std::uint64_t>> serials_;  // by place and tensor; empty before a load
  std::vector<Amount> totals_;                       // by place
  std::map<std::uint64_t, LoadRecord> loads_;        // by first serial
  std::uint64_t next_serial_ = 1;
  std::uint64_t losses_ = 0;
  std::uint64_t changes_ = 0;
  std::unordered_map<std::uint64_t, LeaseInfo> leases_;
  std::unordered_map<std::uint64_t, std::uint64_t> leased_units_;  // unit -> leases
  std::uint64_t next_lease_ = 1;
};

}  // namespace safetensorfs

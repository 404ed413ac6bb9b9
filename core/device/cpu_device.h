#pragma once

#include <map>
#include <mutex>
#include <string>

#include "core/device/device.h"
#include "core/device/page_locks.h"

namespace safetensorfs {

/// The device "cpu": keeps tensors in memory. Their pages of the source's mapping are read in and
/// locked with mlock(2); nothing is copied. A tensor is attached by mapping the source.
class CpuDevice : public Device {
 public:
  const std::string& name() const override { return name_; }
  void Load(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors, const LoadHints&,
            Progress& progress, std::stop_token stop) override;
  std::uint64_t Unload(const Checkpoint& checkpoint,
                       std::span<const std::uint32_t> tensors) override;
  void Verify(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors,
              Progress& progress, std::stop_token stop) override;
  void Read(const Checkpoint& checkpoint, std::uint32_t tensor, std::uint64_t offset,
            std::uint64_t size, ReadReply reply) override;
  std::string HandleFields(const Checkpoint& checkpoint, std::uint32_t tensor) const override;
  std::uint64_t LeaseUnit(const Checkpoint&, std::uint32_t tensor) const override { return tensor; }
  DeviceInfo Info() const override;

 private:
  // What is locked of one source.
  struct Locks {
    PageLocks pages;
    // Bytes that should be unlocked but are not: unlocking within a locked range splits the
    // kernel's mapping, of which a process may have so many (vm.max_map_count).
    std::uint64_t stuck_nbytes = 0;
  };

  std::uint64_t LockedBytes() const;
  static std::uint64_t Unlock(const SourceFile& source, Locks& locks, const ByteRange& range);

  const std::string name_ = "cpu";
  mutable std::mutex mutex_;  // guards locks_; not held while pages are read
  std::map<const SourceFile*, Locks> locks_;
};

}  // namespace safetensorfs

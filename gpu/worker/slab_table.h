#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "gpu/driver/device_memory.h"
#include "gpu/process/message.h"
#include "gpu/process/transfer.h"

namespace safetensorfs {

/// The slabs of a worker. Whoever uses one keeps it alive meanwhile. Thread-safe; every thread has
/// the context current.
class SlabTable {
 public:
  explicit SlabTable(const Driver& driver) : driver_(driver) {}

  using Slabs = std::map<std::uint64_t, std::shared_ptr<const DeviceMemory>>;

  /// Allocates slabs, all or none, without adding them. Throws Error (ENOMEM) with the bytes that
  /// are needed, free and held.
  Slabs Allocate(std::span<const SlabSize> sizes) const;
  void Add(Slabs slabs);
  void Free(std::span<const std::uint64_t> numbers);

  /// Null where there is none of that number.
  std::shared_ptr<const DeviceMemory> Find(std::uint64_t number) const;

 private:
  std::string DescribeMemory(std::uint64_t needed) const;

  const Driver& driver_;
  mutable std::mutex mutex_;  // guards slabs_
  Slabs slabs_;
};

/// The IPC handles of slabs, in the order of `sizes`. Where the driver exports none, none, and
/// `reason` says so.
std::vector<IpcHandle> ExportSlabs(const Driver& driver, const SlabTable::Slabs& slabs,
                                   std::span<const SlabSize> sizes, std::string& reason);

}  // namespace safetensorfs

#ifndef SAFETENSORFS_TESTS_SIMULATED_CUDA_MEMORY_H_
#define SAFETENSORFS_TESTS_SIMULATED_CUDA_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <shared_mutex>
#include <vector>

namespace simulated_cuda {

class Context;
struct ImportEntry;

// Device memory that this process has: a memfd of its own, mapped where its device address says.
// Owns the mapping and the descriptor.
class DeviceBuffer {
 public:
  // `reuse`: takes what a buffer of this size that was made so left, and leaves its own. Throws
  // std::bad_alloc.
  static std::shared_ptr<DeviceBuffer> Create(size_t bytes, bool reuse);

  // Maps another process's memfd and takes the descriptor; null where it cannot be mapped.
  static std::shared_ptr<DeviceBuffer> Open(int descriptor, size_t bytes);

  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer();

  uintptr_t address() const { return reinterpret_cast<uintptr_t>(data_); }
  size_t bytes() const { return bytes_; }
  int descriptor() const { return descriptor_; }
  uint64_t id() const { return id_; }  // unique in the process that created it
  void Fill(uint8_t value);

  Context* context = nullptr;
  uint64_t charged_bytes = 0;         // what it counts for in the device's use
  std::atomic<int> copies = 0;        // issued and not executed
  ImportEntry* import = nullptr;      // memory of another process
  uint64_t exporter_pid = 0;          // of an import, as are the next three
  uint64_t exporter_start_ticks = 0;  //
  uint64_t exporter_id = 0;           //
  int opens = 0;                      // guarded by the one who opens

 private:
  DeviceBuffer() = default;

  bool is_reused_ = false;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  int descriptor_ = -1;
  uint64_t id_ = 0;
};

// Host memory that is registered or that the driver allocated.
struct HostRange {
  uintptr_t address;
  size_t bytes;
  bool allocated;  // by cuMemHostAlloc
  Context* context;
  std::atomic<int> copies = 0;  // issued and not executed
};

// Ranges by address, none of which overlap. Thread-safe.
template <typename Range>
class RangeMap {
 public:
  // False where it would overlap.
  bool Insert(uintptr_t address, size_t bytes, std::shared_ptr<Range> range) {
    std::lock_guard guard(mutex_);
    auto next = ranges_.lower_bound(address);
    if (next != ranges_.end() && next->first < address + bytes) return false;
    if (next != ranges_.begin() && std::prev(next)->second.end > address) return false;
    ranges_.emplace(address, Entry{address + bytes, std::move(range)});
    return true;
  }

  // The range that holds all the bytes; null where none does.
  std::shared_ptr<Range> Find(uintptr_t address, size_t bytes) const {
    std::shared_lock guard(mutex_);
    auto next = ranges_.upper_bound(address);
    if (next == ranges_.begin()) return nullptr;
    const Entry& entry = std::prev(next)->second;
    if (entry.end <= address || entry.end - address < bytes) return nullptr;
    return entry.range;
  }

  // Null where no range begins there, or `accept` does not want it.
  template <typename Accept>
  std::shared_ptr<Range> Remove(uintptr_t address, Accept accept) {
    std::lock_guard guard(mutex_);
    auto found = ranges_.find(address);
    if (found == ranges_.end() || !accept(*found->second.range)) return nullptr;
    std::shared_ptr<Range> range = std::move(found->second.range);
    ranges_.erase(found);
    return range;
  }

  template <typename Accept>
  std::vector<std::shared_ptr<Range>> Select(Accept accept) const {
    std::shared_lock guard(mutex_);
    std::vector<std::shared_ptr<Range>> selected;
    for (const auto& [address, entry] : ranges_) {
      if (accept(*entry.range)) selected.push_back(entry.range);
    }
    return selected;
  }

 private:
  struct Entry {
    uintptr_t end;
    std::shared_ptr<Range> range;
  };

  mutable std::shared_mutex mutex_;
  std::map<uintptr_t, Entry> ranges_;
};

}  // namespace simulated_cuda

#endif  // SAFETENSORFS_TESTS_SIMULATED_CUDA_MEMORY_H_

// What all processes of one simulation share: the file `state` in the folder SIMULATED_CUDA.
//
// It is made by the first process that calls the driver, and tests read it (simulation.py). All
// numbers are 64 bits, native. Header, then named counters, then processes, then imports: which
// process has opened whose allocation. Flock on the file guards what needs more than one number
// to be right; a process that dies takes its lock with it.
//
// The entry of a dead process counts as nothing, as a driver takes back what a dead process had.
// Entries of another PID namespace count as nothing either: from here nobody can tell whether
// their processes live.
#ifndef SAFETENSORFS_TESTS_SIMULATED_CUDA_STATE_FILE_H_
#define SAFETENSORFS_TESTS_SIMULATED_CUDA_STATE_FILE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "configuration.h"
#include "process_identity.h"
#include "symbol.h"

namespace simulated_cuda {

enum class Counter {
  kInits,                  // cuInit that succeeded
  kContextsCreated,        // primary contexts, not retains
  kAllocations,            // cuMemAlloc_v2 that succeeded
  kFrees,                  // cuMemFree_v2 that succeeded
  kFreedWhileImported,     // with importers that live and have it open
  kFreedWhileCopying,      // with copies that were issued and had not executed
  kClosedWhileCopying,     // the same for cuIpcCloseMemHandle
  kHostFreedWhileCopying,  // the same for cuMemHostUnregister and cuMemFreeHost
  kStreamsDestroyedInUse,  // cuStreamDestroy_v2 with copies that had not executed
  kCopiesOutsideMemory,    // beyond an allocation, or after its end; they poison the process
  kHostToDeviceCopies,     // executed
  kHostToDeviceBytes,      // executed
  kDeviceToHostCopies,     // executed
  kDeviceToHostBytes,      // executed
  kPageableCopies,         // asynchronous in name, with host memory that is not pinned
  kHandlesExported,        // cuIpcGetMemHandle that succeeded
  kHandlesOpened,          // cuIpcOpenMemHandle_v2 that succeeded
  kHandlesRefused,         // cuIpcOpenMemHandle_v2 that did not
  kPoisonedProcesses,      // that met an error which stays
  kInjectedFaults,         // calls that the configuration made fail, hang or crash
  kOldAbiCalls,            // of bare names such as cuMemAlloc
};

inline constexpr std::array<std::string_view, 21> kCounterNames = {
    "inits",
    "contexts_created",
    "allocations",
    "frees",
    "freed_while_imported",
    "freed_while_copying",
    "closed_while_copying",
    "host_freed_while_copying",
    "streams_destroyed_in_use",
    "copies_outside_memory",
    "host_to_device_copies",
    "host_to_device_bytes",
    "device_to_host_copies",
    "device_to_host_bytes",
    "pageable_copies",
    "handles_exported",
    "handles_opened",
    "handles_refused",
    "poisoned_processes",
    "injected_faults",
    "old_abi_calls",
};

using SharedNumber = std::atomic<uint64_t>;
static_assert(SharedNumber::is_always_lock_free && sizeof(SharedNumber) == 8);

struct NamedCounter {
  std::array<char, 40> name;  // calls of a function: call.SYMBOL
  SharedNumber value;
};

struct ProcessEntry {
  SharedNumber pid;  // written last
  SharedNumber start_ticks;
  SharedNumber pid_namespace;
  SharedNumber effective_user;
  SharedNumber pinned;       // bytes registered and of cuMemHostAlloc
  SharedNumber pinned_peak;  // the most that it was
  SharedNumber imports;      // opened and not closed handles
  SharedNumber poisoned;
  std::array<SharedNumber, kMaxDevices> allocated;  // bytes, by device
  std::array<SharedNumber, kMaxDevices> context;    // bytes, by device
};

struct ImportEntry {
  SharedNumber importer_pid;  // 0: free
  SharedNumber importer_start_ticks;
  SharedNumber exporter_pid;
  SharedNumber exporter_start_ticks;
  SharedNumber allocation;
  SharedNumber bytes;
};

struct StateLayout {
  SharedNumber magic;  // written last
  SharedNumber counters_offset;
  SharedNumber counters_used;
  SharedNumber processes_offset;
  SharedNumber process_bytes;
  SharedNumber processes_used;
  SharedNumber imports_offset;
  SharedNumber import_bytes;
  SharedNumber imports_used;
  SharedNumber configuration;  // any number that was not there, after each new `config`
  std::array<SharedNumber, 6> unused;
  std::array<NamedCounter, 128> counters;
  std::array<ProcessEntry, 2048> processes;
  std::array<ImportEntry, 16384> imports;
};

static_assert(kCounterNames.size() + kSymbols.size() <= 128);

// Thread-safe.
class StateFile {
 public:
  static constexpr uint64_t kMagic = 0x31307261646d6973;  // "simdar01"

  // Aborts where the folder cannot be used.
  explicit StateFile(const std::string& folder);

  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  void Add(Counter counter, uint64_t by = 1) {
    layout_->counters[static_cast<size_t>(counter)].value.fetch_add(by, std::memory_order_relaxed);
  }

  void CountCall(Symbol symbol) {
    layout_->counters[kCounterNames.size() + symbol.index()].value.fetch_add(
        1, std::memory_order_relaxed);
  }

  // Changes when a test has written another `config` and says so.
  uint64_t configuration() const { return layout_->configuration; }

  // Makes this process's entry, once; `own()` is valid from then on.
  void Enter(const ProcessIdentity& identity);
  ProcessEntry& own() { return *own_; }

  // Adds to what this process has on a device; false, and nothing, where memory is short.
  bool Allocate(size_t device, const DeviceSettings& settings, uint64_t bytes);

  enum class ContextResult { kCreated, kNoMemory, kOtherProcess };
  ContextResult CreateContext(size_t device, const DeviceSettings& settings, bool exclusive);

  uint64_t FreeBytes(size_t device, const DeviceSettings& settings);

  void Pin(uint64_t bytes);

  // Imports of this process; Import returns what EndImport takes.
  ImportEntry* Import(const ProcessIdentity& exporter, uint64_t allocation, uint64_t bytes);
  void EndImport(ImportEntry* entry);

  // Whether a living process has this process's allocation open.
  bool IsImported(uint64_t allocation);

 private:
  // Runs `body` while no other thread or process runs one.
  void Locked(const std::function<void()>& body);

  struct Use {
    uint64_t allocated = 0;
    uint64_t contexts = 0;
    bool other_context = false;
  };

  // Takes back what dead processes had. Call it locked.
  Use Count(size_t device);

  int descriptor_ = -1;
  std::mutex mutex_;  // flock is the descriptor's, so threads need more
  StateLayout* layout_ = nullptr;
  ProcessEntry* own_ = nullptr;
  ProcessIdentity identity_ = {};
};

}  // namespace simulated_cuda

#endif  // SAFETENSORFS_TESTS_SIMULATED_CUDA_STATE_FILE_H_

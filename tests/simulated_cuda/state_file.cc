#include "state_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "stop.h"

namespace simulated_cuda {
namespace {

int OpenOrCreate(const std::string& path) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (descriptor >= 0 || errno != ENOENT) return descriptor;
    descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC | O_CREAT | O_EXCL, 0666);
    if (descriptor >= 0) {
      fchmod(descriptor, 0666);  // whatever the umask is: processes of other users share it
      return descriptor;
    }
  }
  return -1;
}

void SetName(NamedCounter& counter, std::string_view name) {
  std::copy_n(name.data(), std::min(name.size(), counter.name.size() - 1), counter.name.data());
}

// The file is all zeros.
void Describe(StateLayout& layout) {
  auto offset = [&](const auto& member) {
    return static_cast<uint64_t>(reinterpret_cast<const std::byte*>(&member) -
                                 reinterpret_cast<const std::byte*>(&layout));
  };
  layout.counters_offset = offset(layout.counters);
  layout.counters_used = kCounterNames.size() + kSymbols.size();
  layout.processes_offset = offset(layout.processes);
  layout.process_bytes = sizeof(ProcessEntry);
  layout.imports_offset = offset(layout.imports);
  layout.import_bytes = sizeof(ImportEntry);
  for (size_t i = 0; i < kCounterNames.size(); ++i) SetName(layout.counters[i], kCounterNames[i]);
  for (size_t i = 0; i < kSymbols.size(); ++i) {
    SetName(layout.counters[kCounterNames.size() + i], "call." + std::string(kSymbols[i]));
  }
  layout.magic = StateFile::kMagic;
}

}  // namespace

StateFile::StateFile(const std::string& folder) {
  std::string path = folder + "/state";
  descriptor_ = OpenOrCreate(path);
  if (descriptor_ < 0) Stop(path + ": " + std::strerror(errno));
  Locked([&] {
    struct stat status = {};
    if (fstat(descriptor_, &status) != 0 || ftruncate(descriptor_, sizeof(StateLayout)) != 0) {
      Stop(path + ": " + std::strerror(errno));
    }
    void* mapping =
        mmap(nullptr, sizeof(StateLayout), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
    if (mapping == MAP_FAILED) Stop(path + ": " + std::strerror(errno));
    layout_ = static_cast<StateLayout*>(mapping);
    if (status.st_size == 0) Describe(*layout_);
    if (layout_->magic != kMagic) Stop(path + ": it was made by another build");
  });
}

void StateFile::Locked(const std::function<void()>& body) {
  std::lock_guard guard(mutex_);
  while (flock(descriptor_, LOCK_EX) != 0) {
    if (errno != EINTR) Stop(std::string("flock: ") + std::strerror(errno));
  }
  body();
  flock(descriptor_, LOCK_UN);
}

void StateFile::Enter(const ProcessIdentity& identity) {
  Locked([&] {
    if (own_ != nullptr) return;
    identity_ = identity;
    auto& entries = layout_->processes;
    size_t used = layout_->processes_used;
    // A program that has replaced itself by exec is the same process.
    auto same = std::find_if(entries.begin(), entries.begin() + used, [&](const auto& entry) {
      return entry.pid == identity.pid && entry.start_ticks == identity.start_ticks;
    });
    auto entry = same;
    if (same == entries.begin() + used && used < entries.size()) {
      layout_->processes_used = used + 1;
    } else if (same == entries.begin() + used) {
      entry = std::find_if(entries.begin(), entries.end(), [&](const auto& old) {
        return old.pid_namespace == identity.pid_namespace && !IsAlive(old.pid, old.start_ticks);
      });
      if (entry == entries.end()) Stop("state: too many processes");
    }
    for (ImportEntry& import : layout_->imports) {
      if (import.importer_pid == identity.pid) import.importer_pid = 0;
    }
    new (&*entry) ProcessEntry{};
    entry->start_ticks = identity.start_ticks;
    entry->pid_namespace = identity.pid_namespace;
    entry->effective_user = geteuid();
    entry->pid = identity.pid;
    own_ = &*entry;
  });
}

StateFile::Use StateFile::Count(size_t device) {
  Use use;
  size_t used = layout_->processes_used;
  for (size_t i = 0; i < used; ++i) {
    ProcessEntry& entry = layout_->processes[i];
    if (entry.pid_namespace != identity_.pid_namespace) continue;
    if (entry.allocated[device] == 0 && entry.context[device] == 0) continue;
    if (&entry != own_ && !IsAlive(entry.pid, entry.start_ticks)) {
      for (SharedNumber& bytes : entry.allocated) bytes = 0;
      for (SharedNumber& bytes : entry.context) bytes = 0;
      entry.pinned = 0;
      continue;
    }
    use.allocated += entry.allocated[device];
    use.contexts += entry.context[device];
    if (&entry != own_ && entry.context[device] != 0) use.other_context = true;
  }
  return use;
}

bool StateFile::Allocate(size_t device, const DeviceSettings& settings, uint64_t bytes) {
  bool fits = false;
  Locked([&] {
    Use use = Count(device);
    fits = use.allocated + use.contexts + settings.reserved + bytes <= settings.memory &&
           (settings.oom_at == 0 || use.allocated + bytes <= settings.oom_at);
    if (fits) own_->allocated[device] += bytes;
  });
  return fits;
}

StateFile::ContextResult StateFile::CreateContext(size_t device, const DeviceSettings& settings,
                                                  bool exclusive) {
  ContextResult result = ContextResult::kCreated;
  Locked([&] {
    Use use = Count(device);
    uint64_t needed = use.allocated + use.contexts + settings.reserved + settings.context_bytes;
    if (exclusive && use.other_context) {
      result = ContextResult::kOtherProcess;
    } else if (needed > settings.memory) {
      result = ContextResult::kNoMemory;
    } else {
      // At least a byte, so that a context which costs nothing is still seen.
      own_->context[device] = std::max<uint64_t>(settings.context_bytes, 1);
    }
  });
  return result;
}

uint64_t StateFile::FreeBytes(size_t device, const DeviceSettings& settings) {
  uint64_t in_use = 0;
  Locked([&] {
    Use use = Count(device);
    in_use = use.allocated + use.contexts + settings.reserved;
  });
  return settings.memory - std::min(in_use, settings.memory);
}

void StateFile::Pin(uint64_t bytes) {
  uint64_t now = own_->pinned.fetch_add(bytes) + bytes;
  uint64_t peak = own_->pinned_peak;
  while (now > peak && !own_->pinned_peak.compare_exchange_weak(peak, now)) {
  }
}

ImportEntry* StateFile::Import(const ProcessIdentity& exporter, uint64_t allocation,
                               uint64_t bytes) {
  ImportEntry* entry = nullptr;
  Locked([&] {
    auto& imports = layout_->imports;
    auto used = imports.begin() + static_cast<ptrdiff_t>(layout_->imports_used.load());
    auto place = std::find_if(imports.begin(), used, [](const ImportEntry& other) {
      return other.importer_pid == 0 || !IsAlive(other.importer_pid, other.importer_start_ticks);
    });
    if (place == imports.end()) Stop("state: too many imports");
    if (place == used) ++layout_->imports_used;
    entry = &*place;
    entry->importer_start_ticks = identity_.start_ticks;
    entry->exporter_pid = exporter.pid;
    entry->exporter_start_ticks = exporter.start_ticks;
    entry->allocation = allocation;
    entry->bytes = bytes;
    entry->importer_pid = identity_.pid;
  });
  ++own_->imports;
  return entry;
}

void StateFile::EndImport(ImportEntry* entry) {
  entry->importer_pid = 0;
  --own_->imports;
}

bool StateFile::IsImported(uint64_t allocation) {
  size_t used = layout_->imports_used;
  return std::any_of(layout_->imports.begin(), layout_->imports.begin() + used,
                     [&](const ImportEntry& entry) {
                       return entry.importer_pid != 0 && entry.exporter_pid == identity_.pid &&
                              entry.exporter_start_ticks == identity_.start_ticks &&
                              entry.allocation == allocation &&
                              IsAlive(entry.importer_pid, entry.importer_start_ticks);
                     });
}

}  // namespace simulated_cuda

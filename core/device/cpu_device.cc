#include "core/device/cpu_device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/parallel.h"
#include "core/base/text.h"
#include "core/device/memory_limits.h"

namespace safetensorfs {
namespace {

// Small enough to see progress and to stop soon, large enough for a disk.
constexpr std::uint64_t kChunk = 8 << 20;

struct Chunk {
  const SourceFile* source;
  ByteRange range;
};

ByteRange RangeOf(const TensorIndex::Entry& entry) {
  return {entry.offset, entry.offset + entry.nbytes};
}

void* AddressOf(const Chunk& chunk) {
  return const_cast<std::byte*>(chunk.source->mapping().data() + chunk.range.begin);
}

void CheckMapped(const SourceFile& source) {
  if (!source.mapping().empty() || source.size() == 0) return;
  throw Error(EIO, Printable(source.path()) +
                       ": cannot be loaded to cpu: its file system does not support mmap");
}

void CheckNotStopped(const std::stop_token& stop) {
  if (stop.stop_requested()) throw Error(EINTR, "cancelled");
}

// Reads the pages in, then locks them. mlock alone would do both, but without telling a bad disk
// from a limit.
void LockChunk(const Chunk& chunk) {
  void* address = AddressOf(chunk);
  const std::size_t size = chunk.range.size();
#ifdef MADV_POPULATE_READ
  if (madvise(address, size, MADV_POPULATE_READ) != 0 && (errno == EFAULT || errno == EIO)) {
    throw Error(EIO, Printable(chunk.source->path()) + ": cannot be read from byte " +
                         std::to_string(chunk.range.begin) + " on: " + ErrnoText(EIO));
  }
#endif
  if (mlock(address, size) == 0) return;
  throw Error(ENOMEM, "cannot lock " + ByteCount(size) + " of " + Printable(chunk.source->path()) +
                          ": " + ErrnoText(errno) +
                          "; see RLIMIT_MEMLOCK (`ulimit -l`) and vm.max_map_count");
}

std::vector<Chunk> SplitIntoChunks(const std::vector<Chunk>& ranges) {
  std::vector<Chunk> chunks;
  for (const Chunk& whole : ranges) {
    for (std::uint64_t at = whole.range.begin; at < whole.range.end; at += kChunk) {
      chunks.push_back({whole.source, {at, std::min(at + kChunk, whole.range.end)}});
    }
  }
  return chunks;
}

}  // namespace

std::uint64_t CpuDevice::LockedBytes() const {
  std::uint64_t nbytes = 0;
  for (const auto& [source, locks] : locks_) {
    nbytes += locks.pages.locked_nbytes() + locks.stuck_nbytes;
  }
  return nbytes;
}

void CpuDevice::Load(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors,
                     const LoadHints&, Progress& progress, std::stop_token stop) {
  for (const std::uint32_t tensor : tensors) CheckMapped(checkpoint.source_of(tensor));
  std::vector<Chunk> ranges;
  std::uint64_t needed = 0;
  std::uint64_t held;
  {
    const std::lock_guard lock(mutex_);
    held = LockedBytes();
    for (const std::uint32_t tensor : tensors) {
      const SourceFile& source = checkpoint.source_of(tensor);
      for (const ByteRange& range : locks_[&source].pages.Add(RangeOf(checkpoint.index[tensor]))) {
        // Tensors in file order make one range of many.
        if (!ranges.empty() && ranges.back().source == &source &&
            ranges.back().range.end == range.begin) {
          ranges.back().range.end = range.end;
        } else {
          ranges.push_back({&source, range});
        }
        needed += range.size();
      }
    }
  }
  try {
    CheckMemoryLimits(needed, held);
    const std::vector<Chunk> chunks = SplitIntoChunks(ranges);
    std::atomic<std::uint64_t> locked = 0;
    ParallelFor(chunks.size(), [&](std::size_t i) {
      CheckNotStopped(stop);
      LockChunk(chunks[i]);
      locked += chunks[i].range.size();
      // Whole pages are locked, the tensors' own bytes are told.
      progress.done = std::min<std::uint64_t>(locked, progress.total);
    });
    CheckNotStopped(stop);
    progress.done = progress.total.load();
  } catch (...) {
    Unload(checkpoint, tensors);
    throw;
  }
}

// The bytes that are unlocked now.
std::uint64_t CpuDevice::Unlock(const SourceFile& source, Locks& locks, const ByteRange& range) {
  if (munlock(AddressOf({&source, range}), range.size()) == 0) return range.size();
  locks.stuck_nbytes += range.size();
  return 0;
}

std::uint64_t CpuDevice::Unload(const Checkpoint& checkpoint,
                                std::span<const std::uint32_t> tensors) {
  std::uint64_t freed = 0;
  const std::lock_guard lock(mutex_);
  for (const std::uint32_t tensor : tensors) {
    const SourceFile& source = checkpoint.source_of(tensor);
    Locks& locks = locks_[&source];
    for (const ByteRange& range : locks.pages.Remove(RangeOf(checkpoint.index[tensor]))) {
      freed += Unlock(source, locks, range);
    }
  }
  for (const SourceFile& source : checkpoint.sources) {
    const auto at = locks_.find(&source);
    if (at == locks_.end() || at->second.stuck_nbytes == 0) continue;
    // Gaps have grown together since: what could not be unlocked in parts can be as a whole.
    const std::uint64_t stuck = std::exchange(at->second.stuck_nbytes, 0);
    for (const ByteRange& gap : at->second.pages.Gaps(PagesOf({0, source.size()}).end)) {
      Unlock(source, at->second, gap);
    }
    freed += stuck - std::min(stuck, at->second.stuck_nbytes);
  }
  return freed;
}

void CpuDevice::Verify(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors,
                       Progress& progress, std::stop_token stop) {
  // The mapping is read through the kernel: a source that shrinks gives an error, not SIGBUS.
  const UniqueFd memory(open("/proc/self/mem", O_RDONLY | O_CLOEXEC));
  if (!memory) ThrowErrno("/proc/self/mem", "cannot open");
  std::vector<char> ours(kChunk / 8);
  std::vector<char> theirs(kChunk / 8);
  for (const std::uint32_t tensor : tensors) {
    const TensorIndex::Entry& entry = checkpoint.index[tensor];
    const SourceFile& source = checkpoint.source_of(tensor);
    for (std::uint64_t at = 0; at < entry.nbytes; at += ours.size()) {
      CheckNotStopped(stop);
      const std::size_t size = std::min<std::uint64_t>(ours.size(), entry.nbytes - at);
      source.Read(entry.offset + at, {theirs.data(), size});
      const auto address = reinterpret_cast<std::uintptr_t>(source.mapping().data());
      const ssize_t n =
          pread(memory.get(), ours.data(), size, static_cast<off_t>(address + entry.offset + at));
      if (n < 0) {
        throw Error(EIO, "tensor " + Quoted(checkpoint.index.name(tensor)) +
                             ": cannot read its memory: " + ErrnoText(errno));
      }
      if (n != static_cast<ssize_t>(size) || std::memcmp(ours.data(), theirs.data(), size) != 0) {
        throw Error(EIO, "tensor " + Quoted(checkpoint.index.name(tensor)) +
                             ": memory differs from " + Printable(source.path()) +
                             " between bytes " + std::to_string(at) + " and " +
                             std::to_string(at + size) + " of the tensor");
      }
      progress.done += size;
    }
  }
}

void CpuDevice::Read(const Checkpoint& checkpoint, std::uint32_t tensor, std::uint64_t offset,
                     std::uint64_t size, ReadReply reply) {
  Pieces pieces;
  pieces.AddRange(checkpoint.source_of(tensor), checkpoint.index[tensor].offset + offset, size);
  reply(0, pieces);
}

std::string CpuDevice::HandleFields(const Checkpoint& checkpoint, std::uint32_t tensor) const {
  std::string fields = "\"export\":\"mmap\",\"path\":";
  AppendJsonString(checkpoint.source_of(tensor).path(), fields);
  return fields + ",\"offset\":" + std::to_string(checkpoint.index[tensor].offset);
}

DeviceInfo CpuDevice::Info() const {
  const MemoryStatus memory = ReadMemoryStatus();
  const std::lock_guard lock(mutex_);
  return {"", "", memory.total_nbytes, memory.available_nbytes, LockedBytes()};
}

}  // namespace safetensorfs

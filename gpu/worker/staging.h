#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "gpu/driver/context.h"
#include "gpu/driver/pinned_buffer.h"
#include "gpu/driver/stream.h"
#include "gpu/worker/source_reader.h"
#include "gpu/worker/window_reader.h"

namespace safetensorfs {

/// Moves tensors from their sources to device memory through a ring of pinned slots, and compares
/// them there. Reader threads, as many as there are CPUs but 16 at most, read into two slots each;
/// a slot is read into again once the copy from it has run. For one thread at a time, with the
/// context current.
class Staging {
 public:
  static constexpr std::size_t kMaxReaders = 16;
  static constexpr std::size_t kSlot = 4 << 20;  // bytes

  /// What a job works on. All of it must outlive the call.
  struct Work {
    std::span<const Transfer> transfers;  // by slab and offset
    std::span<const SourceReader> sources;
    std::function<CUdeviceptr(std::uint64_t)> address_of;  // of a slab
    std::atomic<std::uint64_t>* nbytes_done;
    std::stop_token stop;
  };

  /// A tensor whose bytes are not its source's, and the first such byte.
  struct Difference {
    std::uint32_t tensor;
    std::uint64_t byte;
  };

  /// Both must outlive it. Slots lie on a NUMA node where one is given (not negative).
  Staging(const Driver& driver, const Context& context, int numa_node);
  ~Staging();

  /// Copies sources to slabs. When it returns, or throws, no copy is under way. Throws Error: EIO,
  /// ENOMEM for the slots, EINTR once stopped.
  void Fill(const Work& work);
  /// Compares slabs with sources; returns the first difference in the order of transfers.
  std::optional<Difference> Compare(const Work& work);

  /// Gives back the pinned memory.
  void Release() { lanes_.clear(); }

 private:
  // A reader's own two slots.
  struct Lane {
    Lane(const Driver& driver, int numa_node);
    std::span<std::byte> slot(std::size_t i) { return {buffer.data() + i * kSlot, kSlot}; }

    PinnedBuffer buffer;
    std::array<Event, 2> copied;  // the slots' copies
    std::size_t turn = 0;
  };
  using WindowWork = std::function<void(Lane& lane, WindowReader& reader, const Stream& stream,
                                        std::size_t window)>;

  void Run(const Work& work, std::size_t windows, const WindowWork& window_work);
  Lane& LaneAt(std::size_t reader);

  const Driver& driver_;
  const Context& context_;
  const int numa_node_;
  std::array<Stream, 2> streams_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace safetensorfs

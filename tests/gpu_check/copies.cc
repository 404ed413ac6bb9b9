#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "gpu/driver/device_facts.h"
#include "gpu/driver/device_memory.h"
#include "gpu/driver/pinned_buffer.h"
#include "gpu/driver/stream.h"
#include "gpu/worker/staging.h"
#include "tests/gpu_check/json_line.h"
#include "tests/gpu_check/measurements.h"
#include "tests/gpu_check/stopwatch.h"

namespace safetensorfs {
namespace {

constexpr std::size_t kKibibyte = 1024;
constexpr std::size_t kMebibyte = 1024 * kKibibyte;
// More than a processor's caches hold.
constexpr std::size_t kHostBytes = 256 * kMebibyte;
constexpr std::array kSlots = {256 * kKibibyte, kMebibyte, 4 * kMebibyte, 16 * kMebibyte,
                               64 * kMebibyte};
constexpr std::array<std::size_t, 3> kStreams = {1, 2, 4};

/// Memory from cuMemHostAlloc.
class AllocatedMemory {
 public:
  AllocatedMemory(const Driver& driver, std::size_t nbytes) : driver_(driver) {
    driver.mem_host_alloc(&address_, nbytes, 0);
  }
  AllocatedMemory(const AllocatedMemory&) = delete;
  AllocatedMemory& operator=(const AllocatedMemory&) = delete;
  ~AllocatedMemory() { driver_.mem_free_host.Try(address_); }

  std::byte* data() const { return static_cast<std::byte*>(address_); }

 private:
  const Driver& driver_;
  void* address_ = nullptr;
};

class Copies {
 public:
  Copies(const Gpu& gpu, double seconds)
      : gpu_(gpu), seconds_(seconds), device_(gpu.driver, kHostBytes) {
    // The first use of memory costs more than the next.
    const std::vector<std::byte> bytes(kHostBytes);
    gpu.driver.memcpy_to_device(device_.address(), bytes.data(), kHostBytes);
  }

  void MeasureFrom(std::byte* host, const char* kind, std::span<const std::size_t> streams) {
    for (const std::size_t count : streams) {
      for (const std::size_t slot : kSlots) {
        Measure(kind, count, slot, [&](const Stream& stream, std::size_t at) {
          stream.CopyToDevice(device_.address() + at, host + at, slot);
        });
      }
    }
  }
  void MeasureTo(std::byte* host, std::size_t streams) {
    Measure("to host", streams, Staging::kSlot, [&](const Stream& stream, std::size_t at) {
      stream.CopyToHost(host + at, device_.address() + at, Staging::kSlot);
    });
  }

 private:
  template <typename Copy>
  void Measure(const char* kind, std::size_t streams, std::size_t slot, const Copy& copy) {
    std::deque<Stream> queues;
    for (std::size_t i = 0; i < streams; ++i) queues.emplace_back(gpu_.driver);
    std::uint64_t nbytes = 0;
    const Stopwatch watch;
    do {
      for (std::size_t at = 0; at < kHostBytes; at += slot) {
        copy(queues[at / slot % streams], at);
      }
      for (const Stream& queue : queues) queue.Synchronize();
      nbytes += kHostBytes;
    } while (watch.seconds() < seconds_);
    JsonLine()
        .AddText("kind", kind)
        .Add("streams", streams)
        .Add("slot_nbytes", slot)
        .AddSeconds("bytes_per_second", static_cast<double>(nbytes) / watch.seconds())
        .Print();
  }

  const Gpu& gpu_;
  const double seconds_;
  const DeviceMemory device_;
};

/// What a reader pins, and all of them, one after the other.
template <typename Memory, typename... Arguments>
void MeasurePinning(const Gpu& gpu, const char* kind, Arguments... arguments) {
  std::deque<Memory> lanes;
  const Stopwatch watch;
  for (std::size_t i = 0; i < Staging::kMaxReaders; ++i) {
    lanes.emplace_back(gpu.driver, 2 * Staging::kSlot, arguments...);
  }
  JsonLine()
      .AddText("kind", kind)
      .Add("pin_nbytes", Staging::kMaxReaders * 2 * Staging::kSlot)
      .AddSeconds("pin_seconds", watch.seconds())
      .Print();
}

}  // namespace

void MeasureCopies(int ordinal, double seconds) {
  const Gpu gpu(ordinal);
  const int node = NumaNodeOf(FactsOf(gpu.driver, ordinal).pci_bus);
  Copies copies(gpu, seconds);
  {
    const PinnedBuffer memory(gpu.driver, kHostBytes, node);
    const bool is_registered = memory.kind() == PinnedBuffer::Kind::kRegistered;
    copies.MeasureFrom(memory.data(), is_registered ? "registered" : "not registered", kStreams);
    copies.MeasureTo(memory.data(), 2);
  }
  constexpr std::array<std::size_t, 1> kTwo = {2};
  try {
    const AllocatedMemory memory(gpu.driver, kHostBytes);
    std::memset(memory.data(), 0, kHostBytes);
    copies.MeasureFrom(memory.data(), "allocated", kTwo);
    MeasurePinning<AllocatedMemory>(gpu, "allocated");
  } catch (const DriverError&) {
    // Confidential computing forbids it: the row is missing.
  }
  MeasurePinning<PinnedBuffer>(gpu, "registered", node);
  std::vector<std::byte> memory(kHostBytes);
  copies.MeasureFrom(memory.data(), "pageable", kTwo);
}

}  // namespace safetensorfs

#include "gpu/worker/staging.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

#include "core/base/error.h"
#include "gpu/process/transfer.h"

namespace safetensorfs {
namespace {

constexpr std::uint64_t kWindow = Staging::kSlot - WindowReader::kMargin;

std::size_t CountCpus() {
  cpu_set_t set;
  // A machine of more CPUs than fit.
  if (sched_getaffinity(0, sizeof set, &set) != 0) return Staging::kMaxReaders;
  return static_cast<std::size_t>(CPU_COUNT(&set));
}

void CheckNotStopped(const std::stop_token& stop) {
  if (stop.stop_requested()) throw Error(EINTR, "cancelled");
}

// A copy of a slot takes a fraction of a millisecond and has usually run by now.
void Await(const Event& event, const std::stop_token& stop) {
  using std::chrono::microseconds;
  for (microseconds pause(10); !event.IsReached(); pause = std::min(2 * pause, microseconds(500))) {
    CheckNotStopped(stop);
    std::this_thread::sleep_for(pause);
  }
}

std::uint64_t BytesOf(const Window& window, std::span<const Transfer> transfers) {
  std::uint64_t nbytes = 0;
  for (std::size_t i = window.first; i < window.last; ++i) {
    nbytes += PartOf(window, transfers[i]).nbytes;
  }
  return nbytes;
}

// The first byte of a window's tensors that differs.
std::optional<Staging::Difference> FindDifference(const Window& window,
                                                  std::span<const Transfer> transfers,
                                                  const std::byte* ours, const std::byte* theirs) {
  for (std::size_t i = window.first; i < window.last; ++i) {
    const WindowPart part = PartOf(window, transfers[i]);
    const std::byte* const a = ours + part.window_offset;
    const std::byte* const b = theirs + part.window_offset;
    if (std::memcmp(a, b, part.nbytes) == 0) continue;
    const auto at = static_cast<std::uint64_t>(std::mismatch(a, a + part.nbytes, b).first - a);
    return Staging::Difference{part.tensor, part.source_offset - transfers[i].source_offset + at};
  }
  return std::nullopt;
}

}  // namespace

Staging::Lane::Lane(const Driver& driver, int numa_node)
    : buffer(driver, 2 * kSlot, numa_node), copied{Event(driver), Event(driver)} {}

Staging::Staging(const Driver& driver, const Context& context, int numa_node)
    : driver_(driver),
      context_(context),
      numa_node_(numa_node),
      streams_{Stream(driver), Stream(driver)} {}

Staging::~Staging() = default;

Staging::Lane& Staging::LaneAt(std::size_t reader) {
  if (!lanes_[reader]) lanes_[reader] = std::make_unique<Lane>(driver_, numa_node_);
  return *lanes_[reader];
}

void Staging::Run(const Work& work, std::size_t windows, const WindowWork& window_work) {
  const std::size_t readers = std::min({windows, CountCpus(), kMaxReaders});
  lanes_.resize(std::max(lanes_.size(), readers));
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> has_failed = false;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto read = [&](std::size_t reader) {
    try {
      context_.MakeCurrent();
      Lane& lane = LaneAt(reader);
      WindowReader window_reader(work.transfers, work.sources);
      for (std::size_t i = next++; i < windows && !has_failed; i = next++) {
        CheckNotStopped(work.stop);
        window_work(lane, window_reader, streams_[reader % streams_.size()], i);
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      has_failed = true;
      if (!failure) failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    try {
      for (std::size_t i = 0; i < readers; ++i) threads.emplace_back(read, i);
    } catch (const std::system_error& error) {
      // Fewer readers do.
      if (threads.empty()) throw Error(EIO, std::string("cannot start a reader: ") + error.what());
    }
  }
  // Also after a failure: the caller frees what copies would still write to.
  for (const Stream& stream : streams_) {
    if (failure) {
      stream.TrySynchronize();
    } else {
      stream.Synchronize();
    }
  }
  if (failure) std::rethrow_exception(failure);
  CheckNotStopped(work.stop);
}

void Staging::Fill(const Work& work) {
  const std::vector<Window> windows = PlanWindows(work.transfers, kWindow, kTensorAlignment);
  Run(work, windows.size(),
      [&](Lane& lane, WindowReader& reader, const Stream& stream, std::size_t i) {
        const Window& window = windows[i];
        const std::size_t slot = lane.turn++ % 2;
        Await(lane.copied[slot], work.stop);
        const std::byte* const bytes = reader.Read(window, lane.slot(slot));
        stream.CopyToDevice(work.address_of(window.slab) + window.begin, bytes,
                            window.end - window.begin);
        lane.copied[slot].Record(stream);
        *work.nbytes_done += BytesOf(window, work.transfers);
      });
}

std::optional<Staging::Difference> Staging::Compare(const Work& work) {
  const std::vector<Window> windows = PlanWindows(work.transfers, kWindow, kTensorAlignment);
  std::mutex mutex;
  std::size_t first = windows.size();
  std::optional<Difference> difference;
  Run(work, windows.size(),
      [&](Lane& lane, WindowReader& reader, const Stream& stream, std::size_t i) {
        const Window& window = windows[i];
        {
          // Windows begin in order: those before the first difference have all begun.
          const std::lock_guard lock(mutex);
          if (i > first) return;
        }
        std::byte* const ours = lane.slot(0).data();
        stream.CopyToHost(ours, work.address_of(window.slab) + window.begin,
                          window.end - window.begin);
        lane.copied[0].Record(stream);
        const std::byte* const theirs = reader.Read(window, lane.slot(1));
        Await(lane.copied[0], work.stop);
        const auto found = FindDifference(window, work.transfers, ours, theirs);
        *work.nbytes_done += BytesOf(window, work.transfers);
        const std::lock_guard lock(mutex);
        if (!found || i > first) return;
        first = i;
        difference = found;
      });
  return difference;
}

}  // namespace safetensorfs

#include "core/base/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace safetensorfs {
namespace {

// Opening files waits for disks and networks as much as for the CPU.
std::size_t ThreadCount(std::size_t count) {
  const std::size_t cpus = std::max(1u, std::thread::hardware_concurrency());
  return std::min(count, std::clamp<std::size_t>(cpus, 2, 16));
}

}  // namespace

void ParallelFor(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> has_failed = false;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto run = [&] {
    for (std::size_t i = next++; i < count && !has_failed; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        has_failed = true;
        if (!failure) failure = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 1; i < ThreadCount(count); ++i) threads.emplace_back(run);
    run();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace safetensorfs

#include "queue.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "driver.h"

namespace simulated_cuda {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

}  // namespace

void CopyEngine::WaitForTime(const Copy& copy) {
  std::this_thread::sleep_until(copy.not_before);
  while (driver_.configuration().stall && !driver_.poisoned()) {
    std::this_thread::sleep_for(milliseconds(1));
    driver_.RefreshConfiguration();
  }
}

void CopyEngine::WaitForBandwidth(const Copy& copy) {
  uint64_t rate = driver_.configuration().copy_bytes_per_second;
  Clock::time_point& busy_until = busy_until_[static_cast<size_t>(copy.direction)];
  if (rate == 0) return;
  Clock::time_point end;
  {
    std::lock_guard guard(mutex_);
    auto duration = std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(static_cast<double>(copy.bytes) / static_cast<double>(rate)));
    busy_until = std::max(busy_until, Clock::now()) + duration;
    end = busy_until;
  }
  while (Clock::now() < end && !driver_.poisoned()) {
    std::this_thread::sleep_until(std::min(end, Clock::now() + milliseconds(5)));
    driver_.RefreshConfiguration();
    if (driver_.configuration().copy_bytes_per_second == rate) continue;
    std::lock_guard guard(mutex_);
    busy_until = {};
    return;
  }
}

void CopyEngine::Execute(const Copy& copy) {
  WaitForTime(copy);
  WaitForBandwidth(copy);
  if (!driver_.poisoned()) {
    std::memcpy(copy.to, copy.from, copy.bytes);
    bool to_device = copy.direction == Direction::kHostToDevice;
    StateFile& state = driver_.state();
    state.Add(to_device ? Counter::kHostToDeviceCopies : Counter::kDeviceToHostCopies);
    state.Add(to_device ? Counter::kHostToDeviceBytes : Counter::kDeviceToHostBytes, copy.bytes);
  }
  --copy.device->copies;
  if (copy.host != nullptr) --copy.host->copies;
}

void Queue::Start() {
  started_ = true;
  // The process's signals are for its own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([this] { Run(); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Queue::Issue(Copy copy) {
  std::lock_guard guard(mutex_);
  copies_.push_back(std::move(copy));
  ++issued_;
  if (!started_) Start();
  if (asleep_) wake_.notify_one();
}

uint64_t Queue::issued() {
  std::lock_guard guard(mutex_);
  return issued_;
}

bool Queue::Reached(uint64_t copies) {
  std::lock_guard guard(mutex_);
  return executed_ >= copies;
}

void Queue::Wait(uint64_t copies) {
  std::unique_lock lock(mutex_);
  ++waiting_;
  executed_changed_.wait(lock, [&] { return executed_ >= copies; });
  --waiting_;
}

void Queue::Close() {
  std::lock_guard guard(mutex_);
  closed_ = true;
  wake_.notify_one();
}

void Queue::Run() {
  prctl(PR_SET_NAME, "simulated_cuda");
  prctl(PR_SET_TIMERSLACK, 1);
  std::unique_lock lock(mutex_);
  for (;;) {
    asleep_ = true;
    wake_.wait(lock, [&] { return closed_ || !copies_.empty(); });
    asleep_ = false;
    if (copies_.empty()) return;
    {
      Copy copy = std::move(copies_.front());
      copies_.pop_front();
      lock.unlock();
      engine_.Execute(copy);
    }
    lock.lock();
    ++executed_;
    if (waiting_ > 0) executed_changed_.notify_all();
  }
}

}  // namespace simulated_cuda

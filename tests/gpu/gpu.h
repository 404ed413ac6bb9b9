#pragma once

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "gpu/device/cuda_devices.h"
#include "tests/catch.h"
#include "tests/gpu/model.h"
#include "tests/gpu/simulation.h"

namespace safetensorfs {

/// Limits so short that a test can wait for them.
inline CudaDeviceOptions ShortLimits() {
  CudaDeviceOptions options;
  options.call_limit = std::chrono::milliseconds(700);
  options.cancel_limit = std::chrono::milliseconds(500);
  options.free_limit = std::chrono::milliseconds(500);
  options.idle_limit = std::chrono::milliseconds(100);
  return options;
}

/// The first device of a simulation, and what it says it has lost.
class Gpu {
 public:
  explicit Gpu(const CudaDeviceOptions& options = {}) {
    FoundDevices found = CudaDeviceFinder(options)({});
    INFO(found.missing);
    REQUIRE(!found.devices.empty());
    device_ = std::move(found.devices.front());
    device_->OnLost([this](const std::string& reason) {
      const std::lock_guard lock(mutex_);
      losses_.push_back(reason);
      lost_.notify_all();
    });
  }

  Device& operator*() { return *device_; }
  Device* operator->() { return device_.get(); }

  void Load(const Model& model, std::vector<std::uint32_t> tensors = {},
            std::stop_token stop = {}) {
    if (tensors.empty()) tensors = model.all();
    Progress progress;
    for (const std::uint32_t tensor : tensors) {
      progress.total += model.checkpoint().index[tensor].nbytes;
    }
    device_->Load(model.checkpoint(), tensors, {}, progress, stop);
    CHECK(progress.done == progress.total);
  }
  void Verify(const Model& model, std::vector<std::uint32_t> tensors = {}) {
    if (tensors.empty()) tensors = model.all();
    Progress progress;
    device_->Verify(model.checkpoint(), tensors, progress, {});
  }
  /// Every byte of a model, as read back.
  void CheckHolds(const Model& model) {
    for (const std::uint32_t tensor : model.all()) {
      const auto [error, bytes] = ReadWhole(*device_, model.checkpoint(), tensor);
      REQUIRE(error == 0);
      REQUIRE((bytes == model.bytes_of(tensor)));
    }
  }

  /// Waits for a loss and returns its reason.
  std::string AwaitLoss() {
    std::unique_lock lock(mutex_);
    REQUIRE(lost_.wait_for(lock, std::chrono::seconds(30), [this] { return !losses_.empty(); }));
    return losses_.front();
  }
  std::vector<std::string> losses() {
    const std::lock_guard lock(mutex_);
    return losses_;
  }

 private:
  std::mutex mutex_;  // guards losses_
  std::condition_variable lost_;
  std::vector<std::string> losses_;
  std::unique_ptr<Device> device_;
};

/// What a call throws: errno and sentence.
template <typename Action>
Error ErrorOf(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  return Error(0, "no error");
}

/// Waits until something is so that no event tells of: another process' end, a number it counts.
template <typename Condition>
void WaitUntil(const Condition& is_so) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!is_so()) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace safetensorfs

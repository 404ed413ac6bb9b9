#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/device/device_finder.h"
#include "tests/unit/test_device.h"

namespace safetensorfs {

/// Finds test devices of the names that it is told; until then a run waits, or is stopped.
class TestFinder {
 public:
  /// For Devices, which must not outlive this.
  DeviceFinder Function() {
    return [this](std::stop_token stop) { return Run(stop); };
  }

  /// Ends the run that waits, or else the next one.
  void Answer(std::vector<std::string> names, std::string missing = "") {
    const std::lock_guard lock(mutex_);
    answer_ = {std::move(names), std::move(missing)};
    changed_.notify_all();
  }

  /// Returns once so many runs have begun.
  void AwaitRuns(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return runs_ >= count; });
  }
  std::size_t runs() const {
    const std::lock_guard lock(mutex_);
    return runs_;
  }

 private:
  struct Words {
    std::vector<std::string> names;
    std::string missing;
  };

  FoundDevices Run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    ++runs_;
    changed_.notify_all();
    if (!changed_.wait(lock, stop, [this] { return answer_.has_value(); })) return {{}, "stopped"};
    FoundDevices found;
    for (const std::string& name : answer_->names) {
      found.devices.push_back(std::make_unique<TestDevice>(name));
    }
    found.missing = answer_->missing;
    answer_.reset();
    return found;
  }

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable_any changed_;
  std::optional<Words> answer_;
  std::size_t runs_ = 0;
};

}  // namespace safetensorfs

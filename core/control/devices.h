#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/control/device_host.h"
#include "core/device/device_finder.h"

namespace safetensorfs {

/// The devices of this mount: those that it is given, and those that a finder finds once somebody
/// asks for a device that is not known. They are numbered from 0 and never go. Thread-safe.
class Devices {
 public:
  /// Numbers of devices are below it; more devices are left out.
  static constexpr std::size_t kMaxCount = 256;

  using LogLine = std::function<void(const std::string& line)>;

  /// `source` must outlive it. `log` is told, from any thread, what happens to a device that nobody
  /// asks for.
  explicit Devices(const SourceTree& source, DeviceFinder finder = {}, LogLine log = {});
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;
  ~Devices() { Stop(); }

  /// Cancels the finder and every command, waits until they have ended, and calls back who waits.
  void Stop();

  /// Before the mount is served, as OnAdd and SetMountDevice.
  void Add(std::unique_ptr<Device> device);
  /// `added` is called with the number of each device, present and future, before all() shows it.
  void OnAdd(std::function<void(std::uint32_t number)> added);
  /// The mount's st_dev, see DeviceHost::SetMountDevice.
  void SetMountDevice(dev_t device);

  /// Those that are known so far, by number.
  std::span<const std::unique_ptr<DeviceHost>> all() const {
    return std::span(hosts_).first(count_.load(std::memory_order_acquire));
  }
  /// The known device that a word of a command means; null if there is none.
  DeviceHost* Find(std::string_view word) const;
  /// The sentence for a word that means no device: which there are, and why there are no more.
  std::string Missing(std::string_view word) const;

  enum class Search { kOnce, kAgain };
  /// Runs the finder, in a thread of its own, and calls `done` from there once it has ended. Who
  /// asks while it runs waits for that run. `done` is called here and now where there is nothing to
  /// wait for: without a finder, once stopped, and for kOnce where the finder has run.
  void LookForMore(Search search, std::function<void()> done);

 private:
  void Run(std::stop_token stop);
  // What the finder says is missing.
  std::string AddWhatIsFound(const std::stop_token& stop);

  const SourceTree& source_;
  const DeviceFinder finder_;
  const LogLine log_;
  std::function<void(std::uint32_t)> added_;
  dev_t mount_device_ = 0;

  // Filled up to count_ and not changed below it: by one thread, before the mount is served the one
  // that makes it, then the finder's.
  std::array<std::unique_ptr<DeviceHost>, kMaxCount> hosts_;
  std::atomic<std::size_t> count_ = 0;

  mutable std::mutex
      mutex_;  // guards what follows; not held while the finder or who waits is called
  std::condition_variable_any asked_;
  std::vector<std::function<void()>> waiting_;
  std::string missing_;  // what the finder said last
  bool has_run_ = false;
  bool is_stopped_ = false;
  std::jthread thread_;
};

}  // namespace safetensorfs

#include "core/control/devices.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "core/base/text.h"

namespace safetensorfs {

Devices::Devices(const SourceTree& source, DeviceFinder finder, LogLine log)
    : source_(source), finder_(std::move(finder)), log_(std::move(log)) {}

void Devices::Stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
  }
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
  for (const auto& host : all()) host->Stop();
}

void Devices::Add(std::unique_ptr<Device> device) {
  const std::size_t number = count_;
  if (number == kMaxCount) return;
  hosts_[number] = std::make_unique<DeviceHost>(std::move(device), source_, log_);
  hosts_[number]->SetMountDevice(mount_device_);
  if (added_) added_(static_cast<std::uint32_t>(number));
  count_.store(number + 1, std::memory_order_release);
}

void Devices::OnAdd(std::function<void(std::uint32_t)> added) {
  added_ = std::move(added);
  for (std::uint32_t number = 0; number < count_; ++number) added_(number);
}

void Devices::SetMountDevice(dev_t device) {
  mount_device_ = device;
  for (const auto& host : all()) host->SetMountDevice(device);
}

DeviceHost* Devices::Find(std::string_view word) const {
  for (const auto& host : all()) {
    if (host->IsCalled(word)) return host.get();
  }
  return nullptr;
}

std::string Devices::Missing(std::string_view word) const {
  std::string text = "no device " + Quoted(word);
  {
    const std::lock_guard lock(mutex_);
    if (!missing_.empty()) text += ": " + missing_;
  }
  std::string names;
  for (const auto& host : all()) names += (names.empty() ? "" : ", ") + host->name();
  return text + "; there is " + names;
}

void Devices::LookForMore(Search search, std::function<void()> done) {
  {
    const std::lock_guard lock(mutex_);
    const bool is_known = search == Search::kOnce && has_run_;
    if (finder_ && !is_stopped_ && !is_known) {
      if (!thread_.joinable()) {
        thread_ = std::jthread([this](std::stop_token stop) { Run(std::move(stop)); });
      }
      waiting_.push_back(std::move(done));
      asked_.notify_one();
      return;
    }
  }
  done();
}

void Devices::Run(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  while (asked_.wait(lock, stop, [this] { return !waiting_.empty(); })) {
    lock.unlock();
    std::string missing = AddWhatIsFound(stop);
    lock.lock();
    missing_ = std::move(missing);
    has_run_ = true;
    const auto waiting = std::exchange(waiting_, {});
    lock.unlock();
    for (const auto& done : waiting) done();
    lock.lock();
  }
}

std::string Devices::AddWhatIsFound(const std::stop_token& stop) {
  try {
    FoundDevices found = finder_(stop);
    for (auto& device : found.devices) {
      if (Find(device->name()) == nullptr) Add(std::move(device));
    }
    return found.missing;
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace safetensorfs

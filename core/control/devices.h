#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/control/device_host.h"

namespace safetensorfs {

/// The devices of this mount. The set is fixed once it is made; the devices are thread-safe.
class Devices {
 public:
  void Add(std::unique_ptr<DeviceHost> device) { hosts_.push_back(std::move(device)); }

  const std::vector<std::unique_ptr<DeviceHost>>& all() const { return hosts_; }

  /// The device that a word of a command means. Throws Error (ENODEV) naming those that there are.
  DeviceHost& Find(std::string_view word) const;

 private:
  std::vector<std::unique_ptr<DeviceHost>> hosts_;
};

}  // namespace safetensorfs

#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "core/device/device.h"

namespace safetensorfs {

/// What a machine has. A device that was found before may be among it: it is dropped. So making one
/// must cost nothing: no process, no device memory.
struct FoundDevices {
  std::vector<std::unique_ptr<Device>> devices;
  /// Why there are none, or no more: "no NVIDIA driver: libcuda.so.1 cannot be loaded".
  std::string missing;
};

/// Asks the machine which devices it has, however long that takes; ends soon after the stop is
/// requested. What it throws is why there are none. Called by one thread at a time.
using DeviceFinder = std::function<FoundDevices(std::stop_token)>;

}  // namespace safetensorfs

#include "gpu/device/cuda_devices.h"

#include "core/base/text.h"
#include "gpu/process/probe.h"

namespace safetensorfs {

DeviceFinder CudaDeviceFinder(CudaDeviceOptions options, std::chrono::milliseconds deadline) {
  return [options = std::move(options), deadline](std::stop_token stop) {
    const Probed probed = ProbeDevices(options.identity, deadline, stop);
    FoundDevices found;
    found.missing = Printable(probed.reason, 1000);
    for (std::size_t i = 0; i < probed.devices.size(); ++i) {
      found.devices.push_back(
          std::make_unique<CudaDevice>(static_cast<int>(i), probed.devices[i], options));
    }
    return found;
  };
}

}  // namespace safetensorfs

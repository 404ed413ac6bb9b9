#pragma once

#include <chrono>

#include "core/device/device_finder.h"
#include "gpu/device/cuda_device.h"

namespace safetensorfs {

/// Finds the cuda devices of this machine, in a process that looks for them and ends. A driver that
/// does not answer by the deadline has none.
DeviceFinder CudaDeviceFinder(CudaDeviceOptions options,
                              std::chrono::milliseconds deadline = std::chrono::seconds(30));

}  // namespace safetensorfs

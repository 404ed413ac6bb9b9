#pragma once

#include <cstdint>
#include <string>

namespace safetensorfs {

class Driver;

/// What the driver says of a device without a context.
struct DeviceFacts {
  std::string uuid;     // as nvidia-smi spells it: "GPU-..." or "MIG-..."
  std::string product;  // "NVIDIA H200"
  std::string pci_bus;  // "0000:01:00.0"
  std::uint64_t total_nbytes = 0;
  /// Why other processes cannot attach to its memory; empty where they can.
  std::string no_export;
};

/// `ordinal` counts the devices that CUDA_VISIBLE_DEVICES leaves. Throws DriverError.
DeviceFacts FactsOf(const Driver& driver, int ordinal);

}  // namespace safetensorfs

#pragma once

#include <string>

#include "gpu/driver/driver.h"

namespace safetensorfs {

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

/// The primary context of a device, which is all that IPC works with; it costs some hundred
/// megabytes of device memory. Threads that wait sleep instead of spinning.
class Context {
 public:
  /// Also makes it current. `driver` must outlive it. Throws DriverError.
  Context(const Driver& driver, int ordinal);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context();

  /// Every other thread that calls the driver does so first.
  void MakeCurrent() const;

  /// True once an error has poisoned it: every later call fails, and only another process helps.
  bool IsDead() const;

 private:
  const Driver& driver_;
  CUdevice device_;
  CUcontext context_;
};

}  // namespace safetensorfs

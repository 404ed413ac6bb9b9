#pragma once

#include "gpu/driver/driver.h"

namespace safetensorfs {

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

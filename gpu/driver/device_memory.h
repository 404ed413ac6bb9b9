#pragma once

#include <cstdint>
#include <utility>

#include "gpu/driver/driver.h"

namespace safetensorfs {

/// Owns device memory from cuMemAlloc, the only kind that cuIpcGetMemHandle exports. Needs the
/// context to be current where it is made and where it goes. Move-only.
class DeviceMemory {
 public:
  /// Throws DriverError (ENOMEM).
  DeviceMemory(const Driver& driver, std::uint64_t nbytes) : driver_(&driver), nbytes_(nbytes) {
    driver.mem_alloc(&address_, nbytes);
  }
  DeviceMemory(DeviceMemory&& other) noexcept
      : driver_(other.driver_),
        address_(std::exchange(other.address_, 0)),
        nbytes_(other.nbytes_) {}
  DeviceMemory& operator=(DeviceMemory&&) = delete;
  ~DeviceMemory() {
    if (address_ != 0) driver_->mem_free.Try(address_);
  }

  CUdeviceptr address() const { return address_; }
  std::uint64_t nbytes() const { return nbytes_; }

 private:
  const Driver* driver_;
  CUdeviceptr address_ = 0;
  std::uint64_t nbytes_;
};

}  // namespace safetensorfs

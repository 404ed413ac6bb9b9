#include "gpu/driver/context.h"

namespace safetensorfs {
namespace {

CUdevice DeviceAt(const Driver& driver, int ordinal) {
  CUdevice device;
  driver.device_get(&device, ordinal);
  return device;
}

}  // namespace

Context::Context(const Driver& driver, int ordinal)
    : driver_(driver), device_(DeviceAt(driver, ordinal)) {
  driver_.primary_context_set_flags(device_, CU_CTX_SCHED_BLOCKING_SYNC);
  driver_.primary_context_retain(&context_, device_);
  MakeCurrent();
}

Context::~Context() { driver_.primary_context_release.Try(device_); }

void Context::MakeCurrent() const { driver_.context_set_current(context_); }

bool Context::IsDead() const { return driver_.context_synchronize.Try() != CUDA_SUCCESS; }

}  // namespace safetensorfs

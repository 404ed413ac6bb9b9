#include "gpu/driver/driver.h"

#include <dlfcn.h>

#include <cerrno>

#include "core/base/text.h"

namespace safetensorfs {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

int ErrnoOf(CUresult result) {
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return ENOMEM;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
      return ENODEV;
    default:
      return EIO;
  }
}

void* Symbol(void* library, const char* symbol) {
  if (void* const address = dlsym(library, symbol)) return address;
  throw Error(ENODEV, std::string("the NVIDIA driver is too old: ") + kLibrary + " has no " +
                          symbol + "; 470 or later is needed");
}

template <typename Function>
void Assign(Function& function, void* address) {
  function = reinterpret_cast<Function>(address);
}

}  // namespace

DriverError::DriverError(CUresult result, const std::string& message)
    : Error(ErrnoOf(result), message), result_(result) {}

Driver::Driver(CallWatch& watch) : library_(dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL)) {
  if (library_ == nullptr) {
    const char* const reason = dlerror();
    throw Error(ENODEV, std::string("no NVIDIA driver: ") +
                            (reason != nullptr ? Printable(reason) : "cannot open it"));
  }
  Assign(get_error_name_, Symbol(library_, "cuGetErrorName"));
  Assign(get_error_string_, Symbol(library_, "cuGetErrorString"));
  const auto assign = [&](auto& function) {
    Assign(function.function_, Symbol(library_, function.symbol_));
    function.driver_ = this;
    function.watch_ = &watch;
  };
#define SAFETENSORFS_ASSIGN(member, ...) assign(member);
  SAFETENSORFS_DRIVER_FUNCTIONS(SAFETENSORFS_ASSIGN)
#undef SAFETENSORFS_ASSIGN
}

std::string Driver::TextOf(CUresult result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (get_error_name_(result, &name) != CUDA_SUCCESS || name == nullptr ||
      get_error_string_(result, &text) != CUDA_SUCCESS || text == nullptr) {
    return "CUDA error " + std::to_string(static_cast<int>(result));
  }
  return std::string(text) + " (" + name + ")";
}

}  // namespace safetensorfs

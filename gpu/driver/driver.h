#pragma once

#include <cuda.h>

#include <string>

#include "core/base/error.h"
#include "gpu/driver/call_watch.h"

// It would give other streams another meaning, and other symbols to the same names.
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#error "build without CUDA_API_PER_THREAD_DEFAULT_STREAM"
#endif

namespace safetensorfs {

class Driver;

/// A call into the CUDA driver that failed. Its errno is ENOMEM for memory, ENODEV where there is
/// no device, else EIO.
class DriverError : public Error {
 public:
  DriverError(CUresult result, const std::string& message);
  CUresult result() const { return result_; }

 private:
  CUresult result_;
};

/// A function of the driver, watched while it runs. Thread-safe.
template <typename... Parameters>
class DriverFunction {
 public:
  explicit DriverFunction(const char* symbol) : symbol_(symbol) {}

  /// Calls it. Throws DriverError.
  void operator()(Parameters... arguments) const {
    const CUresult result = Try(arguments...);
    if (result != CUDA_SUCCESS) Throw(result);
  }
  /// Calls it and returns what it returned.
  CUresult Try(Parameters... arguments) const {
    const CallWatch::Scope scope(*watch_, symbol_);
    return function_(arguments...);
  }
  /// Throws what a call that returned `result` would throw.
  [[noreturn]] void Throw(CUresult result) const;

 private:
  friend class Driver;

  const char* symbol_;
  CUresult (*function_)(Parameters...) = nullptr;
  const Driver* driver_ = nullptr;
  CallWatch* watch_ = nullptr;
};

// Member, symbol, parameters. The symbols are literal, of the oldest ABI that does the job: the
// macros of <cuda.h> would ask for the newest, which older drivers lack, and bare names are those
// of 32-bit device pointers. All of these are in driver 470 (CUDA 11.4) and later.
#define SAFETENSORFS_DRIVER_FUNCTIONS(X)                                                        \
  X(init, "cuInit", unsigned int)                                                               \
  X(driver_get_version, "cuDriverGetVersion", int*)                                             \
  X(device_get_count, "cuDeviceGetCount", int*)                                                 \
  X(device_get, "cuDeviceGet", CUdevice*, int)                                                  \
  X(device_get_name, "cuDeviceGetName", char*, int, CUdevice)                                   \
  X(device_get_uuid, "cuDeviceGetUuid_v2", CUuuid*, CUdevice)                                   \
  X(device_total_mem, "cuDeviceTotalMem_v2", size_t*, CUdevice)                                 \
  X(device_get_attribute, "cuDeviceGetAttribute", int*, CUdevice_attribute, CUdevice)           \
  X(device_get_pci_bus_id, "cuDeviceGetPCIBusId", char*, int, CUdevice)                         \
  X(primary_context_retain, "cuDevicePrimaryCtxRetain", CUcontext*, CUdevice)                   \
  X(primary_context_release, "cuDevicePrimaryCtxRelease_v2", CUdevice)                          \
  X(primary_context_set_flags, "cuDevicePrimaryCtxSetFlags_v2", CUdevice, unsigned int)         \
  X(context_set_current, "cuCtxSetCurrent", CUcontext)                                          \
  X(context_synchronize, "cuCtxSynchronize")                                                    \
  X(mem_get_info, "cuMemGetInfo_v2", size_t*, size_t*)                                          \
  X(mem_alloc, "cuMemAlloc_v2", CUdeviceptr*, size_t)                                           \
  X(mem_free, "cuMemFree_v2", CUdeviceptr)                                                      \
  X(mem_host_alloc, "cuMemHostAlloc", void**, size_t, unsigned int)                             \
  X(mem_free_host, "cuMemFreeHost", void*)                                                      \
  X(mem_host_register, "cuMemHostRegister_v2", void*, size_t, unsigned int)                     \
  X(mem_host_unregister, "cuMemHostUnregister", void*)                                          \
  X(memcpy_to_device, "cuMemcpyHtoD_v2", CUdeviceptr, const void*, size_t)                      \
  X(memcpy_to_device_async, "cuMemcpyHtoDAsync_v2", CUdeviceptr, const void*, size_t, CUstream) \
  X(memcpy_to_host_async, "cuMemcpyDtoHAsync_v2", void*, CUdeviceptr, size_t, CUstream)         \
  X(stream_create, "cuStreamCreate", CUstream*, unsigned int)                                   \
  X(stream_destroy, "cuStreamDestroy_v2", CUstream)                                             \
  X(stream_synchronize, "cuStreamSynchronize", CUstream)                                        \
  X(event_create, "cuEventCreate", CUevent*, unsigned int)                                      \
  X(event_destroy, "cuEventDestroy_v2", CUevent)                                                \
  X(event_record, "cuEventRecord", CUevent, CUstream)                                           \
  X(event_query, "cuEventQuery", CUevent)                                                       \
  X(ipc_get_mem_handle, "cuIpcGetMemHandle", CUipcMemHandle*, CUdeviceptr)                      \
  X(ipc_open_mem_handle, "cuIpcOpenMemHandle_v2", CUdeviceptr*, CUipcMemHandle, unsigned int)   \
  X(ipc_close_mem_handle, "cuIpcCloseMemHandle", CUdeviceptr)

/// The CUDA driver API, from libcuda.so.1. Nothing links to it. A process of which a fork has used
/// it cannot use it. Thread-safe.
class Driver {
 public:
  /// Opens the library, but does not initialise it (`init`). `watch` must outlive it. Throws Error
  /// (ENODEV) where the library or one of its functions is missing.
  explicit Driver(CallWatch& watch);
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  /// "out of memory (CUDA_ERROR_OUT_OF_MEMORY)"
  std::string TextOf(CUresult result) const;

#define SAFETENSORFS_MEMBER(member, symbol, ...) \
  DriverFunction<__VA_ARGS__> member = DriverFunction<__VA_ARGS__>(symbol);
  SAFETENSORFS_DRIVER_FUNCTIONS(SAFETENSORFS_MEMBER)
#undef SAFETENSORFS_MEMBER

 private:
  void* library_;  // never closed: the driver has threads of its own
  CUresult (*get_error_name_)(CUresult, const char**);
  CUresult (*get_error_string_)(CUresult, const char**);
};

template <typename... Parameters>
void DriverFunction<Parameters...>::Throw(CUresult result) const {
  throw DriverError(result, std::string(symbol_) + ": " + driver_->TextOf(result));
}

}  // namespace safetensorfs

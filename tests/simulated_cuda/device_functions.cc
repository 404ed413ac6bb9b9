// Exports: the driver, its devices and their contexts.
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <string>

#include "call.h"

namespace simulated_cuda {
namespace {

struct ErrorText {
  CUresult code;
  const char* name;
  const char* text;
};

constexpr ErrorText kErrors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE",
     "CUDA-capable device(s) is/are busy or unavailable"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_MAP_FAILED, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {CUDA_ERROR_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE",
     "uncorrectable ECC error encountered"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_SYSTEM_NOT_READY, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "system has unsupported display driver / cuda driver combination"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const ErrorText* FindError(CUresult code) {
  for (const ErrorText& error : kErrors) {
    if (error.code == code) return &error;
  }
  return nullptr;
}

// Runs `body(context)` with the context, retained or not, of the device.
template <typename Body>
CUresult OnDevice(Symbol symbol, Needs needs, CUdevice device, Body body) {
  return InDriver(symbol, needs, [&](Driver& driver) {
    if (device < 0 || static_cast<size_t>(device) >= driver.contexts().size()) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    return body(driver, *driver.contexts()[static_cast<size_t>(device)]);
  });
}

CUresult CopyText(const std::string& text, char* to, int bytes) {
  if (to == nullptr || bytes <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::snprintf(to, static_cast<size_t>(bytes), "%s", text.c_str());
  return CUDA_SUCCESS;
}

// What a program may ask for, as of a large GPU; anything else is 0.
int Attribute(CUdevice_attribute attribute, const DeviceSettings& settings, size_t device) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return 9;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return 132;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      return 3;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      return static_cast<int>(device) + 1;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
      return 1;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
      return -1;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
      return settings.compute_mode;
    case CU_DEVICE_ATTRIBUTE_INTEGRATED:
      return settings.integrated;
    default:
      return 0;
  }
}

}  // namespace

SIMULATED_CUDA_EXPORT CUresult cuInit(unsigned int flags) {
  return InDriver("cuInit", Needs::kNothing, [&](Driver& driver) {
    const Configuration& configuration = driver.configuration();
    while (configuration.init_hang) pause();
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (configuration.init_error != 0) return static_cast<CUresult>(configuration.init_error);
    return driver.Initialize();
  });
}

SIMULATED_CUDA_EXPORT CUresult cuDriverGetVersion(int* version) {
  return InDriver("cuDriverGetVersion", Needs::kNothing, [&](Driver& driver) {
    if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *version = driver.configuration().driver_version;
    return CUDA_SUCCESS;
  });
}

// These two have no state: they answer in a forked child as well.
SIMULATED_CUDA_EXPORT CUresult cuGetErrorName(CUresult code, const char** name) {
  const ErrorText* error = FindError(code);
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *name = error == nullptr ? nullptr : error->name;
  return error == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

SIMULATED_CUDA_EXPORT CUresult cuGetErrorString(CUresult code, const char** text) {
  const ErrorText* error = FindError(code);
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *text = error == nullptr ? nullptr : error->text;
  return error == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

SIMULATED_CUDA_EXPORT CUresult cuDeviceGetCount(int* count) {
  return InDriver("cuDeviceGetCount", Needs::kDriver, [&](Driver& driver) {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *count = static_cast<int>(driver.contexts().size());
    return CUDA_SUCCESS;
  });
}

SIMULATED_CUDA_EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return OnDevice("cuDeviceGet", Needs::kDriver, ordinal, [&](Driver&, Context&) {
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

SIMULATED_CUDA_EXPORT CUresult cuDeviceGetName(char* name, int bytes, CUdevice device) {
  return OnDevice("cuDeviceGetName", Needs::kDriver, device, [&](Driver& driver, Context& context) {
    return CopyText(driver.settings(context.device()).name, name, bytes);
  });
}

SIMULATED_CUDA_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  return OnDevice("cuDeviceGetUuid_v2", Needs::kDriver, device,
                  [&](Driver& driver, Context& context) {
                    if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
                    const Uuid& bytes = driver.settings(context.device()).uuid;
                    static_assert(sizeof(uuid->bytes) == sizeof(bytes));
                    std::memcpy(uuid->bytes, bytes.data(), bytes.size());
                    return CUDA_SUCCESS;
                  });
}

SIMULATED_CUDA_EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  return OnDevice("cuDeviceTotalMem_v2", Needs::kDriver, device,
                  [&](Driver& driver, Context& context) {
                    if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
                    *bytes = driver.settings(context.device()).memory;
                    return CUDA_SUCCESS;
                  });
}

SIMULATED_CUDA_EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute,
                                                    CUdevice device) {
  return OnDevice(
      "cuDeviceGetAttribute", Needs::kDriver, device, [&](Driver& driver, Context& context) {
        // A caller's number need not be one of the enumeration's.
        auto code = static_cast<int>(attribute);
        if (value == nullptr || code <= 0 || code > 1000) {
          return CUDA_ERROR_INVALID_VALUE;
        }
        const auto& chosen = driver.configuration().attributes;
        auto found = chosen.find(code);
        size_t number = context.device();
        *value = found != chosen.end() ? found->second
                                       : Attribute(attribute, driver.settings(number), number);
        return CUDA_SUCCESS;
      });
}

SIMULATED_CUDA_EXPORT CUresult cuDeviceGetPCIBusId(char* id, int bytes, CUdevice device) {
  return OnDevice("cuDeviceGetPCIBusId", Needs::kDriver, device, [&](Driver&, Context& context) {
    std::array<char, 16> text;
    std::snprintf(text.data(), text.size(), "0000:%02X:00.0",
                  static_cast<unsigned>(context.device() + 1) & 0xff);
    return CopyText(text.data(), id, bytes);
  });
}

SIMULATED_CUDA_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return OnDevice("cuDevicePrimaryCtxRetain", Needs::kHealthyDriver, device,
                  [&](Driver&, Context& primary) {
                    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
                    CUresult result = primary.Retain();
                    if (result == CUDA_SUCCESS) *context = reinterpret_cast<CUcontext>(&primary);
                    return result;
                  });
}

SIMULATED_CUDA_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return OnDevice("cuDevicePrimaryCtxRelease_v2", Needs::kHealthyDriver, device,
                  [&](Driver&, Context& primary) { return primary.Release(); });
}

SIMULATED_CUDA_EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
  return OnDevice("cuDevicePrimaryCtxSetFlags_v2", Needs::kDriver, device, [&](Driver&, Context&) {
    bool known = (flags & ~static_cast<unsigned int>(CU_CTX_FLAGS_MASK)) == 0;
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

SIMULATED_CUDA_EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  return InDriver("cuCtxSetCurrent", Needs::kDriver, [&](Driver& driver) {
    if (context == nullptr) {
      Driver::CurrentContext() = nullptr;
      return CUDA_SUCCESS;
    }
    for (const auto& primary : driver.contexts()) {
      if (reinterpret_cast<CUcontext>(primary.get()) != context || !primary->active()) continue;
      Driver::CurrentContext() = primary.get();
      return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_CONTEXT;
  });
}

SIMULATED_CUDA_EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  return InDriver("cuCtxGetCurrent", Needs::kDriver, [&](Driver&) {
    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *context = reinterpret_cast<CUcontext>(Driver::CurrentContext());
    return CUDA_SUCCESS;
  });
}

SIMULATED_CUDA_EXPORT CUresult cuCtxSynchronize() {
  return InContext("cuCtxSynchronize", [&](Driver& driver, Context& context) {
    context.Synchronize();
    return ResultOfWork(driver);
  });
}

}  // namespace simulated_cuda

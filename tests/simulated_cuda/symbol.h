#ifndef SAFETENSORFS_TESTS_SIMULATED_CUDA_SYMBOL_H_
#define SAFETENSORFS_TESTS_SIMULATED_CUDA_SYMBOL_H_

#include <array>
#include <cstddef>
#include <string_view>

namespace simulated_cuda {

// Every function that does something; configurations and counters name them like this.
inline constexpr std::array<std::string_view, 39> kSymbols = {
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetUuid_v2",
    "cuDeviceTotalMem_v2",
    "cuDeviceGetAttribute",
    "cuDeviceGetPCIBusId",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxSetFlags_v2",
    "cuCtxSetCurrent",
    "cuCtxGetCurrent",
    "cuCtxSynchronize",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuIpcCloseMemHandle",
};

// One of kSymbols, found when it is compiled: a misspelt name is no constant expression.
class Symbol {
 public:
  consteval Symbol(const char* name) : index_(Find(name)), frequent_(IsFrequent(name)) {}

  size_t index() const { return index_; }

  // Called so often that even one system call each would show.
  bool frequent() const { return frequent_; }

 private:
  static consteval size_t Find(std::string_view name) {
    for (size_t i = 0; i < kSymbols.size(); ++i) {
      if (kSymbols[i] == name) return i;
    }
    throw "not in kSymbols";
  }

  static consteval bool IsFrequent(std::string_view name) {
    return name.starts_with("cuMemcpy") || name == "cuEventRecord" || name == "cuEventQuery" ||
           name == "cuCtxSetCurrent" || name == "cuCtxGetCurrent" || name.starts_with("cuGetError");
  }

  size_t index_;
  bool frequent_;
};

}  // namespace simulated_cuda

#endif  // SAFETENSORFS_TESTS_SIMULATED_CUDA_SYMBOL_H_

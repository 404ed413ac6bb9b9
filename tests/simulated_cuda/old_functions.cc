// Exports: names of other ABIs. A program that means to run on old and new drivers asks for none
// of them: bare names such as cuMemAlloc take 32-bit sizes, and cuCtxCreate_v4 is not in drivers
// that this program supports. Calling one is a mistake that shall be seen, so it aborts.
//
// <cuda.h>, which gives some of these names other signatures, is not included here.
#include "stop.h"

#define SIMULATED_CUDA_REFUSE(name)                               \
  extern "C" __attribute__((visibility("default"))) void name() { \
    simulated_cuda::StopAtOtherAbi(#name);                        \
  }

SIMULATED_CUDA_REFUSE(cuDeviceGetUuid)
SIMULATED_CUDA_REFUSE(cuDeviceTotalMem)
SIMULATED_CUDA_REFUSE(cuDevicePrimaryCtxRelease)
SIMULATED_CUDA_REFUSE(cuDevicePrimaryCtxReset)
SIMULATED_CUDA_REFUSE(cuDevicePrimaryCtxSetFlags)
SIMULATED_CUDA_REFUSE(cuCtxCreate)
SIMULATED_CUDA_REFUSE(cuCtxCreate_v2)
SIMULATED_CUDA_REFUSE(cuCtxCreate_v3)
SIMULATED_CUDA_REFUSE(cuCtxCreate_v4)
SIMULATED_CUDA_REFUSE(cuCtxDestroy)
SIMULATED_CUDA_REFUSE(cuMemGetInfo)
SIMULATED_CUDA_REFUSE(cuMemAlloc)
SIMULATED_CUDA_REFUSE(cuMemFree)
SIMULATED_CUDA_REFUSE(cuMemAllocHost)
SIMULATED_CUDA_REFUSE(cuMemHostRegister)
SIMULATED_CUDA_REFUSE(cuMemcpyHtoD)
SIMULATED_CUDA_REFUSE(cuMemcpyDtoH)
SIMULATED_CUDA_REFUSE(cuMemcpyHtoDAsync)
SIMULATED_CUDA_REFUSE(cuMemcpyDtoHAsync)
SIMULATED_CUDA_REFUSE(cuStreamDestroy)
SIMULATED_CUDA_REFUSE(cuEventDestroy)
SIMULATED_CUDA_REFUSE(cuIpcOpenMemHandle)

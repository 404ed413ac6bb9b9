// <cuda.h> without its renaming: what this library exports has the names that are written here,
// whatever a newer header would turn them into.
#ifndef SAFETENSORFS_TESTS_SIMULATED_CUDA_DRIVER_API_H_
#define SAFETENSORFS_TESTS_SIMULATED_CUDA_DRIVER_API_H_

#include <cuda.h>

#undef cuInit
#undef cuDriverGetVersion
#undef cuGetErrorName
#undef cuGetErrorString
#undef cuDeviceGetCount
#undef cuDeviceGet
#undef cuDeviceGetName
#undef cuDeviceGetAttribute
#undef cuDeviceGetPCIBusId
#undef cuDevicePrimaryCtxRetain
#undef cuCtxSetCurrent
#undef cuCtxGetCurrent
#undef cuCtxSynchronize
#undef cuMemHostAlloc
#undef cuMemFreeHost
#undef cuMemHostUnregister
#undef cuStreamCreate
#undef cuStreamSynchronize
#undef cuEventCreate
#undef cuEventRecord
#undef cuEventQuery
#undef cuEventSynchronize
#undef cuIpcGetMemHandle
#undef cuIpcCloseMemHandle

// The library is built with hidden visibility.
#define SIMULATED_CUDA_EXPORT extern "C" __attribute__((visibility("default")))

#endif  // SAFETENSORFS_TESTS_SIMULATED_CUDA_DRIVER_API_H_

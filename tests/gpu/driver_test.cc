#include "gpu/driver/driver.h"

#include <thread>

#include "gpu/driver/context.h"
#include "tests/catch.h"
#include "tests/gpu/simulation.h"

namespace safetensorfs {

TEST_CASE("Every function is asked for by the name that old drivers have") {
  // The simulated driver ends the process that calls a bare name of which there is a later version;
  // all names here are looked at, also those that few tests call.
  const std::vector<std::string> symbols = {
#define SAFETENSORFS_SYMBOL(member, symbol, ...) symbol,
      SAFETENSORFS_DRIVER_FUNCTIONS(SAFETENSORFS_SYMBOL)
#undef SAFETENSORFS_SYMBOL
  };
  const std::vector<std::string> expected = {"cuInit",
                                             "cuDriverGetVersion",
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
                                             "cuCtxSynchronize",
                                             "cuMemGetInfo_v2",
                                             "cuMemAlloc_v2",
                                             "cuMemFree_v2",
                                             "cuMemHostAlloc",
                                             "cuMemFreeHost",
                                             "cuMemHostRegister_v2",
                                             "cuMemHostUnregister",
                                             "cuMemcpyHtoD_v2",
                                             "cuMemcpyHtoDAsync_v2",
                                             "cuMemcpyDtoHAsync_v2",
                                             "cuStreamCreate",
                                             "cuStreamDestroy_v2",
                                             "cuStreamSynchronize",
                                             "cuEventCreate",
                                             "cuEventDestroy_v2",
                                             "cuEventRecord",
                                             "cuEventQuery",
                                             "cuIpcGetMemHandle",
                                             "cuIpcOpenMemHandle_v2",
                                             "cuIpcCloseMemHandle"};
  CHECK(symbols == expected);
}

TEST_CASE("A failed call names the function and the driver's words") {
  const Simulation simulation;
  CallWatch watch;
  const Driver driver(watch);
  CUdevice device;
  try {
    driver.device_get(&device, 0);
    FAIL("worked before cuInit");
  } catch (const DriverError& error) {
    CHECK(error.result() == CUDA_ERROR_NOT_INITIALIZED);
    CHECK(std::string(error.what()).starts_with("cuDeviceGet: "));
    CHECK(std::string(error.what()).find("CUDA_ERROR_NOT_INITIALIZED") != std::string::npos);
  }
  CHECK(driver.TextOf(static_cast<CUresult>(998)) == "CUDA error 998");
}

TEST_CASE("A call that does not return is seen, and only that") {
  CallWatch watch;
  CHECK_FALSE(watch.FindHanging(std::chrono::milliseconds(0)));
  {
    const CallWatch::Scope outer(watch, "cuSlow");
    CHECK(watch.FindHanging(std::chrono::milliseconds(0)));
    CHECK_FALSE(watch.FindHanging(std::chrono::hours(1)));
    { const CallWatch::Scope inner(watch, "cuQuick"); }
    CHECK(std::string(*watch.FindHanging(std::chrono::milliseconds(0))) == "cuSlow");
  }
  CHECK_FALSE(watch.FindHanging(std::chrono::milliseconds(0)));
}

TEST_CASE("Many threads' calls are watched without disturbing each other") {
  CallWatch watch;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 100; ++i) {
      threads.emplace_back([&watch] {
        for (int call = 0; call < 1000; ++call) CallWatch::Scope(watch, "cuQuick");
      });
    }
  }
  CHECK_FALSE(watch.FindHanging(std::chrono::milliseconds(0)));
}

}  // namespace safetensorfs

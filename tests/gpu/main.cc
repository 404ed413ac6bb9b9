// Runs the tests, but where the cuda device has started this program as one of its processes it is
// that. The driver that all of them find is the simulated one.
#define CATCH_CONFIG_RUNNER
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "gpu/gpu_main.h"
#include "gpu/process/gpu_process.h"
#include "tests/catch.h"
#include "tests/gpu/hostile_worker.h"

int main(int argc, char** argv) {
  const char* const how = std::getenv(safetensorfs::kHostileWorker);
  if (how != nullptr && argc > 1 && std::string_view(argv[0]) == safetensorfs::GpuProcess::kName &&
      std::string_view(argv[1]) == "worker") {
    return safetensorfs::RunHostileWorker(how);
  }
  if (const auto status = safetensorfs::RunGpuProcess(argc, argv)) return *status;
  const char* const path = std::getenv("LD_LIBRARY_PATH");
  if (path == nullptr || std::string(path) != SIMULATED_CUDA_LIBRARY) {
    // The dynamic linker looks at it when a program starts.
    setenv("LD_LIBRARY_PATH", SIMULATED_CUDA_LIBRARY, 1);
    execv("/proc/self/exe", argv);
    return 1;
  }
  return Catch::Session().run(argc, argv);
}

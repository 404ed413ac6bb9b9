// Runs the tests, but where the cuda device has started this program as one of its processes it is
// that. The driver that all of them find is the simulated one.
#define CATCH_CONFIG_RUNNER
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "gpu/gpu_main.h"
#include "tests/catch.h"

int main(int argc, char** argv) {
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

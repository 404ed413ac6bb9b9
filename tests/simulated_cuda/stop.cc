#include "stop.h"

#include <unistd.h>

#include <cstdlib>
#include <string>

namespace simulated_cuda {

void Stop(std::string_view message) {
  std::string line = "simulated libcuda.so.1: " + std::string(message) + "\n";
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, line.data(), line.size());
  std::abort();
}

}  // namespace simulated_cuda

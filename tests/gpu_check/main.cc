// Uses cuda devices without a mount, in the processes that scripts/gpu_check.sh starts.

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "gpu/gpu_main.h"
#include "tests/gpu_check/measurements.h"
#include "tests/gpu_check/session.h"

namespace safetensorfs {
namespace {

constexpr char kUsage[] =
    "usage: gpu_check session SOURCE IDLE_MILLISECONDS\n"
    "       gpu_check copies ORDINAL SECONDS\n"
    "       gpu_check reads FILE THREADS\n"
    "       gpu_check context ORDINAL\n"
    "       gpu_check slabs ORDINAL NBYTES COUNT\n"
    "       gpu_check open ORDINAL\n";

int Run(const std::vector<std::string>& words) {
  const std::string verb = words.empty() ? "" : words[0];
  if (verb == "session" && words.size() == 3) {
    CudaDeviceOptions options;
    options.idle_limit = std::chrono::milliseconds(std::stoll(words[2]));
    Session(words[1], options).Run();
  } else if (verb == "copies" && words.size() == 3) {
    MeasureCopies(std::stoi(words[1]), std::stod(words[2]));
  } else if (verb == "reads" && words.size() == 3) {
    MeasureReads(words[1], std::stoul(words[2]));
  } else if (verb == "context" && words.size() == 2) {
    HoldContext(std::stoi(words[1]));
  } else if (verb == "slabs" && words.size() == 4) {
    HoldSlabs(std::stoi(words[1]), std::stoull(words[2]), std::stoul(words[3]));
  } else if (verb == "open" && words.size() == 2) {
    OpenSlabs(std::stoi(words[1]));
  } else {
    std::fputs(kUsage, stderr);
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace safetensorfs

int main(int argc, char** argv) {
  if (const auto status = safetensorfs::RunGpuProcess(argc, argv)) return *status;
  try {
    return safetensorfs::Run({argv + (argc > 0 ? 1 : 0), argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_check: %s\n", error.what());
    return 1;
  }
}

#include "gpu/gpu_main.h"

#include <signal.h>
#include <sys/prctl.h>

#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/process/gpu_process.h"
#include "gpu/process/probe.h"
#include "gpu/worker/worker.h"

namespace safetensorfs {
namespace {

int Run(const std::vector<std::string>& words) {
  if (words.size() == 1 && words[0] == "probe") return RunProbe();
  if (words.size() == 5 && words[0] == "worker") {
    return RunWorker(
        {std::stoi(words[1]), words[2], words[3], std::chrono::milliseconds(std::stoll(words[4]))});
  }
  std::fprintf(stderr, "%s: is started by safetensorfs only\n", GpuProcess::kName);
  return 1;
}

}  // namespace

std::optional<int> RunGpuProcess(int argc, char** argv) {
  if (argc < 1 || std::string_view(argv[0]) != GpuProcess::kName) return std::nullopt;
  // The kernel calls it "exe", after the link it was started by.
  prctl(PR_SET_NAME, GpuProcess::kName);
  signal(SIGPIPE, SIG_IGN);
  try {
    return Run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", GpuProcess::kName, error.what());
    return 1;
  }
}

}  // namespace safetensorfs

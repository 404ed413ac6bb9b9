#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <exception>

#include "core/base/error.h"
#include "fs/background.h"
#include "fs/check.h"
#include "fs/mount.h"
#include "fs/options.h"

#ifdef SAFETENSORFS_CUDA
#include "gpu/device/cuda_devices.h"
#include "gpu/gpu_main.h"
#endif

namespace safetensorfs {
namespace {

// A folder may hold thousands of checkpoints, each of them an open file.
void RaiseFileLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

#ifdef SAFETENSORFS_CUDA
DeviceFinder MakeDeviceFinder(const Options& options) {
  CudaDeviceOptions cuda;
  // CUDA shares memory between the processes of one user: the one who is to attach.
  if (geteuid() == 0 && options.uid.value_or(0) != 0) {
    cuda.identity = IdentityOf(*options.uid, options.gid.value_or(*options.uid));
  }
  return CudaDeviceFinder(std::move(cuda));
}
#else
DeviceFinder MakeDeviceFinder(const Options&) {
  return [](std::stop_token) {
    return FoundDevices{{}, "this safetensorfs was built without cuda devices"};
  };
}
#endif

int Run(const Options& options) {
  RaiseFileLimit();
  switch (options.action) {
    case Options::Action::kHelp:
      std::fputs(ProgramHelp().c_str(), stdout);
      return 0;
    case Options::Action::kVersion:
      std::puts("safetensorfs " SAFETENSORFS_VERSION);
      return 0;
    case Options::Action::kCheck:
      return CheckSource(options.source);
    case Options::Action::kMount:
      break;
  }
  Background background(options.foreground, options.mountpoint);
  if (background.is_parent()) return background.status();
  return Mount(options, background, MakeDeviceFinder(options));
}

}  // namespace
}  // namespace safetensorfs

int main(int argc, char** argv) {
  // A parent may have left it ignored: then nobody hears how children end.
  signal(SIGCHLD, SIG_DFL);
#ifdef SAFETENSORFS_CUDA
  if (const auto status = safetensorfs::RunGpuProcess(argc, argv)) return *status;
#endif
  using safetensorfs::kExitMount;
  using safetensorfs::kExitUsage;
  safetensorfs::Options options;
  try {
    options = safetensorfs::ParseOptions({argv + (argc > 0 ? 1 : 0), argv + argc});
  } catch (const safetensorfs::Error& error) {
    std::fprintf(stderr, "safetensorfs: %s\n%s\n", error.what(), safetensorfs::UsageLine().c_str());
    return kExitUsage;
  }
  try {
    return safetensorfs::Run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "safetensorfs: %s\n", error.what());
    return kExitMount;
  }
}

#include <sys/resource.h>

#include <cstdio>
#include <exception>

#include "core/base/error.h"
#include "fs/background.h"
#include "fs/check.h"
#include "fs/mount.h"
#include "fs/options.h"

namespace safetensorfs {
namespace {

// A folder may hold thousands of checkpoints, each of them an open file.
void RaiseFileLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

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
  return background.is_parent() ? background.status() : Mount(options, background, {});
}

}  // namespace
}  // namespace safetensorfs

int main(int argc, char** argv) {
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

#include "fs/read_ahead.h"

#include <sys/sysmacros.h>

#include <fstream>
#include <string>

namespace safetensorfs {
namespace {

// From 1 MiB on, replies do not fit a pipe and are copied instead of spliced.
constexpr int kKilobytes = 512;

}  // namespace

void RaiseReadAhead(dev_t device) {
  const std::string path = "/sys/class/bdi/" + std::to_string(major(device)) + ":" +
                           std::to_string(minor(device)) + "/read_ahead_kb";
  int present = kKilobytes;
  if (!(std::ifstream(path) >> present) || present >= kKilobytes) return;
  std::ofstream(path) << kKilobytes;
}

}  // namespace safetensorfs

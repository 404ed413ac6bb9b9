#pragma once

#include <chrono>
#include <string>

namespace safetensorfs {

/// What a worker is told when it starts.
struct WorkerOptions {
  int ordinal = 0;   // among the devices that CUDA_VISIBLE_DEVICES leaves
  std::string uuid;  // which the device must have
  std::string pci_bus;
  /// A call into the driver that takes longer hangs.
  std::chrono::milliseconds call_limit{30000};
};

/// What the process of one GPU does: holds its context and slabs, and answers the daemon on the
/// socket (see MessageKind) until that is closed. It ends itself where the driver hangs or an error
/// has poisoned the context; the daemon starts another. Returns its exit status.
int RunWorker(const WorkerOptions& options);

}  // namespace safetensorfs

#pragma once

#include <functional>

#include "core/tree.h"
#include "fs/live_files.h"
#include "fs/log.h"
#include "fs/lookup_memory.h"

namespace safetensorfs {

/// What the FUSE operations work on. Lives as long as the session.
struct Filesystem {
  Filesystem(const SourceTree& source, Tree::Ownership ownership, Log& logger);

  Tree tree;
  LiveFiles live;
  LookupMemory lookups;
  Log& log;
  /// Called once the kernel has answered the mount.
  std::function<void()> on_init;
};

}  // namespace safetensorfs

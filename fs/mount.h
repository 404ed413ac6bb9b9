#pragma once

#include "fs/background.h"
#include "fs/options.h"

namespace safetensorfs {

/// Opens SOURCE, mounts it at MOUNTPOINT and serves it until it is unmounted or the process gets
/// SIGTERM, SIGINT or SIGHUP. Calls background.Ready() once the kernel has answered. Returns the
/// exit status; problems have been printed by then.
int Mount(const Options& options, Background& background);

}  // namespace safetensorfs

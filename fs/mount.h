#pragma once

#include "core/device/device_finder.h"
#include "fs/background.h"
#include "fs/options.h"

namespace safetensorfs {

/// Opens SOURCE, mounts it at MOUNTPOINT and serves it until it is unmounted or the process gets
/// SIGTERM, SIGINT or SIGHUP. Calls background.Ready() once the kernel has answered. Returns the
/// exit status; problems have been printed by then.
///
/// Beside the cpu there are the devices that `finder`, which may be empty, finds once somebody asks
/// for one: after the fork into the background, in a thread of its own.
int Mount(const Options& options, Background& background, DeviceFinder finder);

}  // namespace safetensorfs

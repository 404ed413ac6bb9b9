#pragma once

#include <sys/types.h>

namespace safetensorfs {

/// Has the kernel read more ahead of a FUSE mount (its st_dev) than the 128 KiB that it begins
/// with: first reads and page faults are then faster than those of a FUSE server that does not ask
/// (`scripts/bench read`). Root may ask for that, after the kernel has got the answer to its INIT;
/// for others nothing changes.
void RaiseReadAhead(dev_t device);

}  // namespace safetensorfs

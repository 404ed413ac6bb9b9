#pragma once

#include "fs/fuse.h"

namespace safetensorfs {

/// The FUSE operations. They decode a request, ask the Filesystem that is the session's user data,
/// and reply. Nothing they do waits for anything but the source's own file system: what takes
/// longer is answered from another thread.
fuse_lowlevel_ops MakeOperations();

}  // namespace safetensorfs

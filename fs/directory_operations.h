#pragma once

#include "fs/fuse.h"

namespace safetensorfs {

/// Sets readdir and readdirplus.
void SetDirectoryOperations(fuse_lowlevel_ops& operations);

}  // namespace safetensorfs

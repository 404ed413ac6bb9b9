#pragma once

#include "fs/fuse.h"

namespace safetensorfs {

/// Sets open, read, write, flush and release.
///
/// fuse_file_info::fh is, by the kind of node: a descriptor or -1 (files of the tree), a
/// ControlHandle's number or 0 (live files), a lease (handles and slabs of devices).
void SetFileOperations(fuse_lowlevel_ops& operations);

}  // namespace safetensorfs

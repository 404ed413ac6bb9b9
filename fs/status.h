#pragma once

#include <string>

#include "core/control/devices.h"
#include "core/tree/source_tree.h"

namespace safetensorfs {

/// `.status` of the directory of checkpoint `place`, as JSON: the source, its files and whether
/// they still are what was mounted, the devices, the commands in flight, warnings.
std::string CheckpointStatus(const SourceTree& tree, std::uint32_t place, const Devices& devices);

/// `.status` at the root of a mounted folder: the same for all its checkpoints, and what was left
/// out of the mount and why.
std::string FolderStatus(const SourceTree& tree, const Devices& devices);

}  // namespace safetensorfs

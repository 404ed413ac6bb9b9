#pragma once

#include <string>

#include "core/source_tree.h"

namespace safetensorfs {

/// `.status` of the checkpoint directory `number` of `tree`, as JSON: source, its files and whether
/// they still are what was mounted, warnings.
std::string CheckpointStatus(const SourceTree& tree, std::size_t number);

/// `.status` at the root of a mounted folder: the same for all its checkpoints, and what was left
/// out of the mount and why.
std::string FolderStatus(const SourceTree& tree);

}  // namespace safetensorfs

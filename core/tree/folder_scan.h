#pragma once

#include "core/tree/source_tree.h"

namespace safetensorfs {

/// Lists the root folder of `tree` (its path is set) and all below it: folders, regular files, and
/// symbolic links that lead to regular files (as caches keep them). Links to folders and special
/// files are left out; what cannot be read is left out with a warning, which is a problem too where
/// it may be or hold a checkpoint. Throws Error where the root itself cannot be read.
void ScanFolder(SourceTree& tree, Problems& problems);

/// Sorts a folder's items by name.
void SortItems(SourceTree::Folder& folder);

}  // namespace safetensorfs

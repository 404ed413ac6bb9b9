#pragma once

#include <optional>
#include <string_view>

#include "fs/filesystem.h"
#include "fs/fuse.h"

namespace safetensorfs {

/// Questions about any node, whoever serves it: the immutable tree (core/tree/tree.h), the live
/// files or what stands below `.devices`.

/// What a LOOKUP answers, timeouts included; nothing if there is no such name. A live file's node
/// is a fresh one that must be forgotten.
std::optional<fuse_entry_param> LookUp(Filesystem& filesystem, NodeId directory,
                                       std::string_view name);

/// What stat says of a node. `reader` sees its own report in `.control`. Throws Error.
struct stat StatNode(const Filesystem& filesystem, NodeId node, uid_t reader);

/// For how long the kernel may keep what stat says of a node, in seconds.
double StatTimeout(NodeId node);

/// An entry of the immutable tree.
fuse_entry_param TreeEntry(const Filesystem& filesystem, NodeId node);

NodeId ParentOf(const Filesystem& filesystem, NodeId directory);

}  // namespace safetensorfs

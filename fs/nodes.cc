#include "fs/nodes.h"

#include "fs/reply.h"

namespace safetensorfs {
namespace {

struct stat LiveStat(const Filesystem& filesystem, const LiveFiles::File& file,
                     std::uint64_t size) {
  const struct stat times = filesystem.tree.Stat(kRootNode);
  return filesystem.tree.Describe(file.ino, file.mode, size, times);
}

fuse_entry_param LiveEntry(Filesystem& filesystem, NodeId node) {
  // The size is not known before it is asked for: no timeout, so that the kernel asks.
  fuse_entry_param entry = {};
  entry.ino = node;
  entry.attr = LiveStat(filesystem, filesystem.live.FileOf(node), 0);
  return entry;
}

}  // namespace

fuse_entry_param TreeEntry(const Filesystem& filesystem, NodeId node) {
  fuse_entry_param entry = {};
  entry.ino = node;
  entry.attr = filesystem.tree.Stat(node);
  entry.attr_timeout = kForever;
  entry.entry_timeout = kForever;
  return entry;
}

std::optional<fuse_entry_param> LookUp(Filesystem& filesystem, NodeId directory,
                                       std::string_view name) {
  if (const auto node = filesystem.live.Lookup(directory, name)) {
    return LiveEntry(filesystem, *node);
  }
  if (const auto found = filesystem.device_files.Lookup(directory, name)) {
    fuse_entry_param entry = {};
    entry.ino = found->node;
    entry.attr = filesystem.device_files.Stat(found->node);
    entry.attr_timeout = StatTimeout(found->node);
    entry.entry_timeout = found->is_lasting ? kForever : 0;
    return entry;
  }
  if (DeviceFiles::Owns(directory)) return std::nullopt;
  const auto node = filesystem.tree.Lookup(directory, name);
  if (!node) return std::nullopt;
  return TreeEntry(filesystem, *node);
}

struct stat StatNode(const Filesystem& filesystem, NodeId node, uid_t reader) {
  if (LiveFiles::IsLive(node)) {
    return LiveStat(filesystem, filesystem.live.FileOf(node),
                    filesystem.live.Text(node, reader)->size());
  }
  if (DeviceFiles::Owns(node)) return filesystem.device_files.Stat(node);
  return filesystem.tree.Stat(node);
}

double StatTimeout(NodeId node) {
  return DeviceFiles::Owns(node) && !DeviceFiles::IsStatLasting(node) ? 0 : kForever;
}

NodeId ParentOf(const Filesystem& filesystem, NodeId directory) {
  return DeviceFiles::Owns(directory) ? filesystem.device_files.Parent(directory)
                                      : filesystem.tree.Parent(directory);
}

}  // namespace safetensorfs

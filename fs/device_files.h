#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/control/devices.h"
#include "core/tree/tree.h"

namespace safetensorfs {

/// What stands below `.devices` of a checkpoint, except `info`, which is a live file:
///
///   .devices/<device>/data/<tensor>      a loaded tensor, read back; rm unloads it
///   .devices/<device>/handles/<tensor>   JSON to attach with; an open descriptor is a lease
///   .devices/<device>/slabs/<number>     the same for all that is in one slab
///
/// Files come and go with the loads. Their nodes hold the load's serial number, a slab's that of
/// its first tensor, so that an old descriptor never reads what was loaded later. Thread-safe.
class DeviceFiles {
 public:
  struct Modes {
    mode_t handle = 0400;
  };

  DeviceFiles(const Tree& tree, Devices& devices, Modes modes)
      : tree_(tree), devices_(devices), modes_(modes) {}

  /// True for the nodes that belong here, directories and files.
  static bool Owns(NodeId node);
  static bool IsDirectory(NodeId node);
  /// The number of the checkpoint that a directory belongs to.
  static std::uint32_t PlaceOf(NodeId directory);

  /// True for `.devices`, where a name that is not there may be a device that is not found yet.
  static bool ListsDevices(NodeId directory);
  /// The folder of a device in a checkpoint, where `info` is.
  static NodeId DeviceFolder(std::uint32_t place, std::uint32_t device);

  struct Found {
    NodeId node;
    bool is_lasting;  // the name will go on meaning this node
  };
  /// Also finds `.devices` itself in a checkpoint's directory.
  std::optional<Found> Lookup(NodeId directory, std::string_view name) const;
  NodeId Parent(NodeId directory) const;

  /// False where a stat's answer may become another: a slab's text, until it is leased.
  static bool IsStatLasting(NodeId node);
  /// Throws Error (ESTALE) for a file whose load is gone.
  struct stat Stat(NodeId node) const;

  /// As Tree::List.
  void List(NodeId directory, std::uint64_t position,
            const std::function<bool(const Tree::Entry&)>& visit) const;

  /// Throws Error (ESTALE) where the load is gone or its source was changed in place.
  void CheckFile(NodeId node) const;

  /// True for handles and slabs, of which an open descriptor is a lease.
  static bool IsLeased(NodeId node);
  /// Takes a lease for a process; give it back with EndLease. Throws Error (ESTALE).
  std::uint64_t BeginLease(NodeId node, pid_t pid) const;
  void EndLease(NodeId node, std::uint64_t lease) const;

  /// Replies once, perhaps later and from another thread.
  void Read(NodeId node, std::uint64_t offset, std::uint64_t size, Device::ReadReply reply) const;

  /// Unloads. `done` is called once, perhaps later and from another thread. Throws Error: ENOENT,
  /// and EROFS for what is not a loaded tensor.
  void Unlink(NodeId directory, std::string_view name, pid_t pid,
              std::function<void(Outcome)> done) const;

 private:
  struct File {
    DeviceHost* host;
    LoadedTensors::Instance instance;
  };

  DeviceHost& HostOf(NodeId node) const;
  File FileOf(NodeId node) const;
  std::shared_ptr<const std::string> TextOf(NodeId node, const File& file) const;
  void ListSlabs(NodeId directory, std::uint64_t position,
                 const std::function<bool(const Tree::Entry&)>& visit) const;
  // What a name in data/, handles/ or slabs/ stands for.
  std::optional<LoadedTensors::Instance> FindLoaded(NodeId directory, std::string_view name) const;

  const Tree& tree_;
  Devices& devices_;
  Modes modes_;
};

}  // namespace safetensorfs

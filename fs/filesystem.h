#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "core/control/control_service.h"
#include "core/control/devices.h"
#include "core/tree/tree.h"
#include "fs/control_file.h"
#include "fs/device_files.h"
#include "fs/live_files.h"
#include "fs/log.h"
#include "fs/lookup_memory.h"

namespace safetensorfs {

/// What the FUSE operations work on. Lives longer than the session, whose requests it answers.
class Filesystem {
 public:
  struct Modes {
    Tree::Ownership ownership;
    bool group_commands = false;  // the group may command and attach, as the owner does
  };

  /// Takes the devices; `source` and `logger` must outlive it.
  Filesystem(const SourceTree& source, std::unique_ptr<Devices> all_devices, const Modes& modes,
             Log& logger);

  /// Cancels every command and answers every request that waits. Before the session ends.
  void Stop();

  Tree tree;
  LiveFiles live;
  LookupMemory lookups;
  Log& log;
  /// Called once the kernel has answered the mount.
  std::function<void()> on_init;
  /// Called once, before anything in the mount is opened; may be empty.
  std::function<void()> on_first_lookup;
  std::once_flag first_lookup;

  std::unique_ptr<Devices> devices;
  DeviceFiles device_files;
  std::unique_ptr<ControlService> control;
  ControlHandles control_handles;

 private:
  void AddLiveFiles(std::uint32_t place, mode_t control_mode);
  void AddDeviceInfo(std::uint32_t device);
};

}  // namespace safetensorfs

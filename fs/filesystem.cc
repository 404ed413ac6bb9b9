#include "fs/filesystem.h"

#include "fs/status.h"

namespace safetensorfs {
namespace {

constexpr mode_t kReadable = S_IFREG | 0444;

}  // namespace

Filesystem::Filesystem(const SourceTree& source, std::unique_ptr<Devices> all_devices,
                       const Modes& modes, Log& logger)
    : tree(source, modes.ownership),
      log(logger),
      devices(std::move(all_devices)),
      device_files(tree, *devices, {modes.group_commands ? 0440u : 0400u}),
      control(std::make_unique<ControlService>(source, *devices)) {
  for (std::uint32_t place = 0; place < source.checkpoints.size(); ++place) {
    AddLiveFiles(place, S_IFREG | (modes.group_commands ? 0660 : 0600));
  }
  devices->OnAdd([this](std::uint32_t device) { AddDeviceInfo(device); });
  if (source.is_folder()) {
    live.Add({kRootNode, ".status", kReadable,
              [this](uid_t) { return FolderStatus(tree.source(), *devices); }});
  }
}

void Filesystem::AddLiveFiles(std::uint32_t place, mode_t control_mode) {
  const NodeId directory = tree.DirectoryOf(place);
  live.Add({directory, ".control", control_mode,
            [this, place](uid_t reader) { return control->LatestReport(place, reader); }, place});
  live.Add({directory, ".status", kReadable,
            [this, place](uid_t) { return CheckpointStatus(tree.source(), place, *devices); }});
}

void Filesystem::AddDeviceInfo(std::uint32_t device) {
  for (std::uint32_t place = 0; place < tree.source().checkpoints.size(); ++place) {
    live.Add(
        {DeviceFiles::DeviceFolder(place, device), "info", kReadable,
         [this, place, device](uid_t) { return devices->all()[device]->InfoText(place) + '\n'; }});
  }
}

void Filesystem::Stop() {
  control->Stop();
  devices->Stop();
}

}  // namespace safetensorfs

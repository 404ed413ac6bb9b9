#include "fs/device_files.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/control/device_texts.h"

namespace safetensorfs {
namespace {

constexpr std::string_view kDevicesName = ".devices";

// The folders of one device, in the order of their listing.
struct Part {
  std::string_view name;
  NodeKind kind;
};
constexpr std::array<Part, 3> kParts = {{{"data", NodeKind::kDataFolder},
                                         {"handles", NodeKind::kHandlesFolder},
                                         {"slabs", NodeKind::kSlabsFolder}}};

// Nodes of files: kind, device, serial number of the load.
constexpr int kDeviceShift = 48;
constexpr std::uint64_t kSerialMask = (std::uint64_t{1} << kDeviceShift) - 1;

NodeKind KindOf(NodeId node) { return static_cast<NodeKind>(node >> 56); }
std::uint32_t DeviceOf(NodeId folder) { return static_cast<std::uint32_t>(folder); }

NodeId FileNode(NodeKind kind, std::uint32_t device, std::uint64_t serial) {
  return static_cast<NodeId>(kind) << 56 | static_cast<NodeId>(device) << kDeviceShift | serial;
}

bool IsFile(NodeId node) { return KindOf(node) >= NodeKind::kDataFile; }

NodeKind FileKindIn(NodeId directory) {
  switch (KindOf(directory)) {
    case NodeKind::kDataFolder:
      return NodeKind::kDataFile;
    case NodeKind::kHandlesFolder:
      return NodeKind::kHandleFile;
    default:
      return NodeKind::kSlabFile;
  }
}

}  // namespace

std::uint32_t DeviceFiles::PlaceOf(NodeId directory) {
  return static_cast<std::uint32_t>(directory >> 32) & 0xFFFFFF;
}

bool DeviceFiles::Owns(NodeId node) { return KindOf(node) >= NodeKind::kDevicesFolder; }

bool DeviceFiles::IsDirectory(NodeId node) { return Owns(node) && !IsFile(node); }

bool DeviceFiles::IsLeased(NodeId node) { return KindOf(node) >= NodeKind::kHandleFile; }

bool DeviceFiles::IsStatLasting(NodeId node) { return KindOf(node) != NodeKind::kSlabFile; }

bool DeviceFiles::ListsDevices(NodeId directory) {
  return KindOf(directory) == NodeKind::kDevicesFolder;
}

NodeId DeviceFiles::DeviceFolder(std::uint32_t place, std::uint32_t device) {
  return EncodeNode({NodeKind::kDeviceFolder, place, device});
}

DeviceHost& DeviceFiles::HostOf(NodeId node) const {
  const auto device =
      IsFile(node) ? static_cast<std::uint32_t>(node >> kDeviceShift) & 0xFF : DeviceOf(node);
  return *devices_.all()[device];
}

DeviceFiles::File DeviceFiles::FileOf(NodeId node) const {
  DeviceHost& host = HostOf(node);
  const auto instance = host.loaded().FindSerial(node & kSerialMask);
  if (!instance)
    throw Error(ESTALE, host.name() + ": load " + std::to_string(node & kSerialMask) + " is gone");
  return {&host, *instance};
}

std::optional<LoadedTensors::Instance> DeviceFiles::FindLoaded(NodeId directory,
                                                               std::string_view name) const {
  const std::uint32_t place = PlaceOf(directory);
  if (KindOf(directory) == NodeKind::kSlabsFolder) {
    const auto number = ParseSlabName(name);
    return number ? HostOf(directory).FindInSlab(place, *number) : std::nullopt;
  }
  const auto tensor = tree_.source().checkpoints[place].checkpoint->index.FindFile(name);
  return tensor ? HostOf(directory).loaded().Find(place, *tensor) : std::nullopt;
}

std::optional<DeviceFiles::Found> DeviceFiles::Lookup(NodeId directory,
                                                      std::string_view name) const {
  if (!Owns(directory)) {
    const auto place = tree_.PlaceOf(directory);
    if (!place || name != kDevicesName) return std::nullopt;
    return Found{EncodeNode({NodeKind::kDevicesFolder, *place, 0}), true};
  }
  const std::uint32_t place = PlaceOf(directory);
  switch (KindOf(directory)) {
    case NodeKind::kDevicesFolder:
      for (std::uint32_t i = 0; i < devices_.all().size(); ++i) {
        if (devices_.all()[i]->name() == name) return Found{DeviceFolder(place, i), true};
      }
      return std::nullopt;
    case NodeKind::kDeviceFolder:
      for (const Part& part : kParts) {
        if (part.name == name) {
          return Found{EncodeNode({part.kind, place, DeviceOf(directory)}), true};
        }
      }
      return std::nullopt;
    default: {
      const auto instance = FindLoaded(directory, name);
      if (!instance) return std::nullopt;
      return Found{FileNode(FileKindIn(directory), DeviceOf(directory), instance->serial), false};
    }
  }
}

NodeId DeviceFiles::Parent(NodeId directory) const {
  const std::uint32_t place = PlaceOf(directory);
  switch (KindOf(directory)) {
    case NodeKind::kDevicesFolder:
      return tree_.DirectoryOf(place);
    case NodeKind::kDeviceFolder:
      return EncodeNode({NodeKind::kDevicesFolder, place, 0});
    default:
      return DeviceFolder(place, DeviceOf(directory));
  }
}

struct stat DeviceFiles::Stat(NodeId node) const {
  if (IsDirectory(node)) {
    const bool is_data = KindOf(node) == NodeKind::kDataFolder;
    const Checkpoint& checkpoint = *tree_.source().checkpoints[PlaceOf(node)].checkpoint;
    return tree_.Describe(node, S_IFDIR | (is_data ? 0755 : 0555), 0, checkpoint.newest_status());
  }
  const File file = FileOf(node);
  const Checkpoint& checkpoint = *tree_.source().checkpoints[file.instance.place].checkpoint;
  const struct stat& times = checkpoint.source_of(file.instance.tensor).status();
  if (IsLeased(node)) {
    return tree_.Describe(node, S_IFREG | modes_.handle, TextOf(node, file)->size(), times);
  }
  return tree_.Describe(node, S_IFREG | 0644, checkpoint.index[file.instance.tensor].nbytes, times);
}

void DeviceFiles::List(NodeId directory, std::uint64_t position,
                       const std::function<bool(const Tree::Entry&)>& visit) const {
  const std::uint32_t place = PlaceOf(directory);
  switch (KindOf(directory)) {
    case NodeKind::kDevicesFolder:
      for (std::uint64_t i = position; i < devices_.all().size(); ++i) {
        const NodeId node = DeviceFolder(place, static_cast<std::uint32_t>(i));
        if (!visit({devices_.all()[i]->name(), node, i + 1})) return;
      }
      return;
    case NodeKind::kDeviceFolder:
      for (std::uint64_t i = position; i < kParts.size(); ++i) {
        const NodeId node = EncodeNode({kParts[i].kind, place, DeviceOf(directory)});
        if (!visit({kParts[i].name, node, i + 1})) return;
      }
      return;
    case NodeKind::kSlabsFolder:
      return ListSlabs(directory, position, visit);
    default:
      break;
  }
  const TensorIndex& index = tree_.source().checkpoints[place].checkpoint->index;
  const LoadedTensors& loaded = HostOf(directory).loaded();
  // Positions are tensors' numbers: a listing goes on where it was while files go.
  for (auto at = loaded.Next(place, static_cast<std::uint32_t>(position)); at;
       at = loaded.Next(place, at->tensor + 1)) {
    const NodeId node = FileNode(FileKindIn(directory), DeviceOf(directory), at->serial);
    const std::string name = index.FileName(at->tensor);
    if (!visit({name, node, std::uint64_t{at->tensor} + 1})) return;
  }
}

void DeviceFiles::ListSlabs(NodeId directory, std::uint64_t position,
                            const std::function<bool(const Tree::Entry&)>& visit) const {
  const std::uint32_t place = PlaceOf(directory);
  const DeviceHost& host = HostOf(directory);
  for (const std::uint64_t number : host.SlabNumbers(place)) {
    if (number < position) continue;
    const auto first = host.FindInSlab(place, number);
    if (!first) continue;
    const NodeId node = FileNode(NodeKind::kSlabFile, DeviceOf(directory), first->serial);
    if (!visit({std::to_string(number), node, number + 1})) return;
  }
}

std::shared_ptr<const std::string> DeviceFiles::TextOf(NodeId node, const File& file) const {
  if (KindOf(node) == NodeKind::kSlabFile) return file.host->SlabText(file.instance);
  return std::make_shared<const std::string>(file.host->HandleText(file.instance));
}

void DeviceFiles::CheckFile(NodeId node) const {
  const File file = FileOf(node);
  tree_.source()
      .checkpoints[file.instance.place]
      .checkpoint->source_of(file.instance.tensor)
      .CheckUnchanged();
}

std::uint64_t DeviceFiles::BeginLease(NodeId node, pid_t pid) const {
  const File file = FileOf(node);
  const auto lease = file.host->Lease(file.instance, pid);
  if (!lease)
    throw Error(ESTALE,
                file.host->name() + ": load " + std::to_string(file.instance.serial) + " is gone");
  return *lease;
}

void DeviceFiles::EndLease(NodeId node, std::uint64_t lease) const {
  HostOf(node).loaded().Release(lease);
}

void DeviceFiles::Read(NodeId node, std::uint64_t offset, std::uint64_t size,
                       Device::ReadReply reply) const {
  const File file = FileOf(node);
  if (!IsLeased(node)) return file.host->Read(file.instance, offset, size, std::move(reply));
  const auto text = TextOf(node, file);
  Pieces pieces;
  if (offset < text->size()) pieces.text().append(*text, offset, size);
  reply(0, pieces);
}

void DeviceFiles::Unlink(NodeId directory, std::string_view name, pid_t pid,
                         std::function<void(Outcome)> done) const {
  if (KindOf(directory) != NodeKind::kDataFolder)
    throw Error(EROFS, "rm " + Quoted(name) + ": only what stands in data/ can be removed");
  const auto instance = FindLoaded(directory, name);
  if (!instance)
    throw Error(ENOENT, "rm " + Quoted(name) + ": not loaded on " + HostOf(directory).name());
  HostOf(directory).Unlink(*instance, pid, std::move(done));
}

}  // namespace safetensorfs

#include "fs/live_files.h"

#include <cerrno>

#include "core/base/error.h"

namespace safetensorfs {
namespace {

// Nodes of kind kLive: those below 2^32 (kFirstSerial) are st_ino of files, the
// rest serial numbers of lookups.
constexpr NodeId kLiveBit = static_cast<NodeId>(NodeKind::kLive) << 56;

}  // namespace

bool LiveFiles::IsLive(NodeId node) { return static_cast<NodeKind>(node >> 56) == NodeKind::kLive; }

void LiveFiles::Add(File file) {
  const std::lock_guard lock(mutex_);
  file.ino = kLiveBit | next_ino_++;
  files_[file.directory].push_back(std::move(file));
}

const std::vector<LiveFiles::File>& LiveFiles::In(NodeId directory) const {
  static const std::vector<File> kNone;
  const std::lock_guard lock(mutex_);
  const auto files = files_.find(directory);
  return files == files_.end() ? kNone : files->second;
}

const LiveFiles::File* LiveFiles::Find(NodeId directory, std::string_view name) const {
  for (const File& file : In(directory)) {
    if (file.name == name) return &file;
  }
  return nullptr;
}

bool LiveFiles::Has(NodeId directory, std::string_view name) const {
  return Find(directory, name) != nullptr;
}

std::optional<NodeId> LiveFiles::Lookup(NodeId directory, std::string_view name) {
  const File* file = Find(directory, name);
  if (file == nullptr) return std::nullopt;
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->file = file;
  snapshot->references = 1;
  const std::lock_guard lock(mutex_);
  const NodeId node = kLiveBit | next_serial_++;
  snapshots_.emplace(node, std::move(snapshot));
  return node;
}

void LiveFiles::Forget(NodeId node, std::uint64_t count) {
  const std::lock_guard lock(mutex_);
  const auto at = snapshots_.find(node);
  if (at == snapshots_.end()) return;
  if (at->second->references <= count) {
    snapshots_.erase(at);
  } else {
    at->second->references -= count;
  }
}

std::shared_ptr<LiveFiles::Snapshot> LiveFiles::SnapshotOf(NodeId node) const {
  const std::lock_guard lock(mutex_);
  const auto at = snapshots_.find(node);
  if (at == snapshots_.end()) throw Error(ESTALE, "a live file's node that is gone");
  return at->second;
}

const LiveFiles::File& LiveFiles::FileOf(NodeId node) const { return *SnapshotOf(node)->file; }

std::shared_ptr<const std::string> LiveFiles::Text(NodeId node, uid_t reader) const {
  std::shared_ptr<Snapshot> snapshot = SnapshotOf(node);
  std::call_once(snapshot->rendered, [&] { snapshot->text = snapshot->file->render(reader); });
  const std::string* text = &snapshot->text;
  return {std::move(snapshot), text};
}

}  // namespace safetensorfs

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/tree/tree.h"

namespace safetensorfs {

/// Files whose content changes, such as `.status`. One node cannot give a true size and a
/// consistent text to each reader, since fstat asks without saying which open file it means. So
/// every lookup gets a node of its own, whose text is made when its size or content is first asked
/// for and stays until the kernel forgets the node; st_ino stays the same. Thread-safe.
class LiveFiles {
 public:
  struct File {
    NodeId directory;
    std::string name;
    mode_t mode;
    std::function<std::string(uid_t reader)> render;  // from any thread
    /// For a control file: the number of its checkpoint. Only these may be opened for writing.
    std::optional<std::uint32_t> control = std::nullopt;
    NodeId ino = 0;  // set by Add
  };

  /// Before the directory is served.
  void Add(File file);

  /// The live files of a directory, in the order in which they were added.
  const std::vector<File>& In(NodeId directory) const;

  /// True for the name of a live file in that directory.
  bool Has(NodeId directory, std::string_view name) const;

  /// A fresh node for the file of that name, with one reference; nothing if there is none.
  std::optional<NodeId> Lookup(NodeId directory, std::string_view name);
  /// Drops references; at none the node is gone.
  void Forget(NodeId node, std::uint64_t count);

  static bool IsLive(NodeId node);
  /// The file of a node. Throws Error (ESTALE) for one that is gone.
  const File& FileOf(NodeId node) const;
  /// The node's text, rendered at the first call for who asks then.
  std::shared_ptr<const std::string> Text(NodeId node, uid_t reader) const;

 private:
  struct Snapshot {
    const File* file;
    std::uint64_t references;
    std::once_flag rendered;
    std::string text;
  };

  const File* Find(NodeId directory, std::string_view name) const;
  std::shared_ptr<Snapshot> SnapshotOf(NodeId node) const;

  static constexpr std::uint64_t kFirstSerial = std::uint64_t{1} << 32;

  mutable std::mutex mutex_;  // guards what follows
  // By directory; what is in one does not change once it is served.
  std::unordered_map<NodeId, std::vector<File>> files_;
  std::uint64_t next_ino_ = 0;
  std::unordered_map<NodeId, std::shared_ptr<Snapshot>> snapshots_;
  std::uint64_t next_serial_ = kFirstSerial;
};

}  // namespace safetensorfs

#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/unique_fd.h"
#include "core/tree/checkpoint_documents.h"
#include "core/tree/merged_file.h"
#include "core/tree/pieces.h"
#include "core/tree/source_tree.h"

namespace safetensorfs {

/// Names a file or directory of the tree, and is its st_ino. Computed, never stored:
///
///   bits 63-56  kind (NodeKind)
///   bits 55-32  folder or checkpoint, by its number in the SourceTree
///   bits 31-0   tensor, file or document
///
/// The root is 1, FUSE's number for it.
using NodeId = std::uint64_t;

inline constexpr NodeId kRootNode = 1;

enum class NodeKind : std::uint8_t {
  kFolder = 1,  // a mirrored folder
  kFile,        // a mirrored file
  kTensors,     // the directory of a checkpoint
  kTensor,
  kNpyFolder,  // .npy
  kNpyTensor,
  kDocument,  // .summary and the other generated files, by position in kDocuments
  // Not of this tree; numbered by who serves them:
  kLive,           // files whose content changes
  kDevicesFolder,  // .devices and what is below, whose files come and go
  kDeviceFolder,
  kDataFolder,
  kHandlesFolder,
  kSlabsFolder,
  kDataFile,
  kHandleFile,
  kSlabFile,
};

struct Node {
  NodeKind kind;
  std::uint32_t place;  // folder or checkpoint
  std::uint32_t index;
};

NodeId EncodeNode(Node node);

/// The immutable part of a mount: which names there are, what stat says of them, which bytes they
/// hold. Computed from a SourceTree; knows nothing of FUSE. Thread-safe.
class Tree {
 public:
  /// Directories are owned by, and appear to be of, `uid` and `gid`; mode bits in `umask` are off.
  struct Ownership {
    uid_t uid = 0;
    gid_t gid = 0;
    mode_t umask = 0;
  };

  struct Entry {
    std::string_view name;
    NodeId node;
    /// Where the listing goes on after this entry. Belongs to the entry, not to its position.
    std::uint64_t next;
  };

  Tree(const SourceTree& source, Ownership ownership);

  /// The node that a name means in a directory, listed or hidden.
  std::optional<NodeId> Lookup(NodeId directory, std::string_view name) const;

  /// Visits the listed entries of a directory from `position` (0: the first) until `visit` says
  /// false. Does not include "." and "..".
  void List(NodeId directory, std::uint64_t position,
            const std::function<bool(const Entry&)>& visit) const;

  bool IsDirectory(NodeId node) const;
  NodeId Parent(NodeId directory) const;

  /// What stat says of a node; the size of generated files is counted when it is first asked for.
  /// Throws Error (ENOENT, EFBIG).
  struct stat Stat(NodeId node) const;
  /// Only st_ino and st_mode, which cost nothing.
  struct stat Type(NodeId node) const;
  /// A stat with this ownership and the times of `times`, for files that others serve.
  struct stat Describe(NodeId ino, mode_t mode, std::uint64_t size, const struct stat& times) const;

  /// Checks that what a file is made of has not changed; throws Error (ESTALE). Mirrored files are
  /// opened: pass the descriptor to Read.
  UniqueFd Open(NodeId node) const;
  /// Adds the bytes [offset, offset+size) of a file, fewer at its end.
  void Read(NodeId node, int fd, std::uint64_t offset, std::uint64_t size, Pieces& pieces) const;

  struct TensorRef {
    const Checkpoint* checkpoint;
    std::uint32_t tensor;
  };
  /// The tensor that a tensor file or .npy shows.
  std::optional<TensorRef> FindTensor(NodeId node) const;

  /// The number of the checkpoint that a directory of tensors shows.
  std::optional<std::uint32_t> PlaceOf(NodeId directory) const;
  /// The directory of tensors of a checkpoint.
  NodeId DirectoryOf(std::uint32_t place) const;

  const SourceTree& source() const { return source_; }
  /// The bytes of all tensors.
  std::uint64_t total_nbytes() const { return total_nbytes_; }
  std::uint64_t total_files() const { return total_files_; }

 private:
  // A checkpoint's generated files.
  struct Generated {
    explicit Generated(const Checkpoint& checkpoint)
        : summary(SummaryDocument(checkpoint)),
          index(IndexDocument(checkpoint)),
          metadata(MetadataDocument(checkpoint)),
          merged(checkpoint) {}
    Document summary;
    Document index;
    Document metadata;
    MergedFile merged;
  };

  Node Decode(NodeId node) const;
  NodeId Encode(Node node) const;
  const Checkpoint& checkpoint(const Node& node) const;
  std::uint64_t Size(const Node& node) const;
  std::string NpyHeaderOf(const Node& node) const;
  std::uint64_t NpyHeaderSizeOf(const Node& node) const;
  const Document* DocumentOf(const Node& node) const;
  void ListFolder(const Node& node, std::uint64_t position,
                  const std::function<bool(const Entry&)>& visit) const;
  void ListTensors(const Node& node, std::uint64_t position, NodeKind kind,
                   const std::function<bool(const Entry&)>& visit) const;

  const SourceTree& source_;
  Ownership ownership_;
  Node root_;
  std::deque<Generated> generated_;
  std::uint64_t total_nbytes_ = 0;
  std::uint64_t total_files_ = 0;
};

}  // namespace safetensorfs

#include "core/tree/tree.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/format/npy_header.h"

namespace safetensorfs {
namespace {

enum DocumentIndex : std::uint32_t { kSummary, kIndex, kMetadata, kMerged };

struct DocumentName {
  std::string_view name;
  bool is_listed;
};

// By DocumentIndex. Hidden ones are kept from du, find, cp -r and grep -r, which then see the
// model once.
constexpr std::array<DocumentName, 4> kDocuments = {{{".summary", true},
                                                     {".index.json", true},
                                                     {".metadata.json", true},
                                                     {".all.safetensors", false}}};

constexpr std::string_view kNpyFolderName = ".npy";
constexpr std::string_view kNpySuffix = ".npy";

// Positions below are documents; a tensor's is its number plus this, so that a listing goes on
// where it was when files before it are gone.
constexpr std::uint64_t kFirstTensor = 16;

constexpr mode_t kDirectoryMode = S_IFDIR | 0555;
constexpr mode_t kFileMode = S_IFREG | 0444;

constexpr int kKindShift = 56;
constexpr int kPlaceShift = 32;
constexpr std::uint32_t kPlaceMask = 0xFFFFFF;

}  // namespace

NodeId EncodeNode(Node node) {
  return static_cast<NodeId>(node.kind) << kKindShift |
         static_cast<NodeId>(node.place & kPlaceMask) << kPlaceShift | node.index;
}

Tree::Tree(const SourceTree& source, Ownership ownership)
    : source_(source),
      ownership_(ownership),
      root_{source.is_folder() ? NodeKind::kFolder : NodeKind::kTensors, 0, 0} {
  if (source.folders.size() > kPlaceMask || source.checkpoints.size() > kPlaceMask) {
    throw Error(EFBIG, Printable(source.path) + ": more than 2^24 folders or checkpoints");
  }
  for (const SourceTree::OpenCheckpoint& open : source.checkpoints) {
    generated_.emplace_back(*open.checkpoint);
    total_files_ += open.checkpoint->index.size();
    for (std::uint32_t i = 0; i < open.checkpoint->index.size(); ++i) {
      total_nbytes_ += open.checkpoint->index[i].nbytes;
    }
  }
}

Node Tree::Decode(NodeId node) const {
  if (node == kRootNode) return root_;
  return {static_cast<NodeKind>(node >> kKindShift),
          static_cast<std::uint32_t>(node >> kPlaceShift) & kPlaceMask,
          static_cast<std::uint32_t>(node)};
}

NodeId Tree::Encode(Node node) const {
  const bool is_root = node.kind == root_.kind && node.place == 0;
  return is_root ? kRootNode : EncodeNode(node);
}

const Checkpoint& Tree::checkpoint(const Node& node) const {
  return *source_.checkpoints[node.place].checkpoint;
}

std::optional<std::uint32_t> Tree::PlaceOf(NodeId directory) const {
  const Node node = Decode(directory);
  if (node.kind != NodeKind::kTensors) return std::nullopt;
  return node.place;
}

NodeId Tree::DirectoryOf(std::uint32_t place) const {
  return Encode({NodeKind::kTensors, place, 0});
}

std::optional<NodeId> Tree::Lookup(NodeId directory, std::string_view name) const {
  const Node node = Decode(directory);
  switch (node.kind) {
    case NodeKind::kFolder: {
      const auto& items = source_.folders[node.place].items;
      const auto item = std::lower_bound(
          items.begin(), items.end(), name,
          [](const SourceTree::Item& a, std::string_view b) { return a.name < b; });
      if (item == items.end() || item->name != name) return std::nullopt;
      switch (item->kind) {
        case SourceTree::Kind::kFolder:
          return Encode({NodeKind::kFolder, item->number, 0});
        case SourceTree::Kind::kFile:
          return Encode({NodeKind::kFile, node.place, item->number});
        case SourceTree::Kind::kCheckpoint:
          return Encode({NodeKind::kTensors, item->number, 0});
      }
      return std::nullopt;
    }
    case NodeKind::kTensors: {
      if (name == kNpyFolderName) return Encode({NodeKind::kNpyFolder, node.place, 0});
      for (std::uint32_t i = 0; i < kDocuments.size(); ++i) {
        if (kDocuments[i].name == name) return Encode({NodeKind::kDocument, node.place, i});
      }
      const auto tensor = checkpoint(node).index.FindFile(name);
      if (!tensor) return std::nullopt;
      return Encode({NodeKind::kTensor, node.place, *tensor});
    }
    case NodeKind::kNpyFolder: {
      if (!name.ends_with(kNpySuffix)) return std::nullopt;
      name.remove_suffix(kNpySuffix.size());
      const auto tensor = checkpoint(node).index.FindFile(name);
      if (!tensor) return std::nullopt;
      return Encode({NodeKind::kNpyTensor, node.place, *tensor});
    }
    default:
      return std::nullopt;
  }
}

void Tree::List(NodeId directory, std::uint64_t position,
                const std::function<bool(const Entry&)>& visit) const {
  const Node node = Decode(directory);
  switch (node.kind) {
    case NodeKind::kFolder:
      return ListFolder(node, position, visit);
    case NodeKind::kNpyFolder:
      return ListTensors(node, position, NodeKind::kNpyTensor, visit);
    case NodeKind::kTensors:
      for (std::uint64_t i = position; i < kDocuments.size(); ++i) {
        if (!kDocuments[i].is_listed) continue;
        const auto index = static_cast<std::uint32_t>(i);
        if (!visit({kDocuments[i].name, Encode({NodeKind::kDocument, node.place, index}), i + 1})) {
          return;
        }
      }
      return ListTensors(node, position, NodeKind::kTensor, visit);
    default:
      return;
  }
}

void Tree::ListFolder(const Node& node, std::uint64_t position,
                      const std::function<bool(const Entry&)>& visit) const {
  const auto& items = source_.folders[node.place].items;
  for (std::uint64_t i = position; i < items.size(); ++i) {
    Node child{NodeKind::kFolder, items[i].number, 0};
    if (items[i].kind == SourceTree::Kind::kFile) {
      child = {NodeKind::kFile, node.place, items[i].number};
    } else if (items[i].kind == SourceTree::Kind::kCheckpoint) {
      child.kind = NodeKind::kTensors;
    }
    if (!visit({items[i].name, Encode(child), i + 1})) return;
  }
}

void Tree::ListTensors(const Node& node, std::uint64_t position, NodeKind kind,
                       const std::function<bool(const Entry&)>& visit) const {
  const TensorIndex& index = checkpoint(node).index;
  const std::uint64_t first = std::max(position, kFirstTensor) - kFirstTensor;
  for (std::uint64_t i = first; i < index.size(); ++i) {
    const auto tensor = static_cast<std::uint32_t>(i);
    std::string name = index.FileName(tensor);
    if (kind == NodeKind::kNpyTensor) name += kNpySuffix;
    if (!visit({name, Encode({kind, node.place, tensor}), kFirstTensor + i + 1})) return;
  }
}

bool Tree::IsDirectory(NodeId node) const {
  const NodeKind kind = Decode(node).kind;
  return kind == NodeKind::kFolder || kind == NodeKind::kTensors || kind == NodeKind::kNpyFolder;
}

NodeId Tree::Parent(NodeId directory) const {
  const Node node = Decode(directory);
  if (directory == kRootNode) return kRootNode;
  if (node.kind == NodeKind::kFolder) {
    return Encode({NodeKind::kFolder, source_.folders[node.place].parent, 0});
  }
  if (node.kind == NodeKind::kTensors) {
    return Encode({NodeKind::kFolder, source_.checkpoints[node.place].parent, 0});
  }
  return Encode({NodeKind::kTensors, node.place, 0});
}

const Document* Tree::DocumentOf(const Node& node) const {
  const Generated& generated = generated_[node.place];
  switch (node.index) {
    case kSummary:
      return &generated.summary;
    case kIndex:
      return &generated.index;
    case kMetadata:
      return &generated.metadata;
    default:
      return nullptr;
  }
}

std::string Tree::NpyHeaderOf(const Node& node) const {
  const TensorIndex& index = checkpoint(node).index;
  const TensorIndex::Entry& entry = index[node.index];
  return NpyHeader(static_cast<Dtype>(entry.dtype), index.shape(node.index), entry.nbytes);
}

std::uint64_t Tree::NpyHeaderSizeOf(const Node& node) const {
  const TensorIndex& index = checkpoint(node).index;
  const TensorIndex::Entry& entry = index[node.index];
  return NpyHeaderSize(static_cast<Dtype>(entry.dtype), index.shape(node.index), entry.nbytes);
}

std::uint64_t Tree::Size(const Node& node) const {
  switch (node.kind) {
    case NodeKind::kTensor:
      return checkpoint(node).index[node.index].nbytes;
    case NodeKind::kNpyTensor:
      return NpyHeaderSizeOf(node) + checkpoint(node).index[node.index].nbytes;
    case NodeKind::kFile:
      return static_cast<std::uint64_t>(source_.files[node.index].status.st_size);
    case NodeKind::kDocument: {
      const Document* document = DocumentOf(node);
      return document != nullptr ? document->size() : generated_[node.place].merged.size();
    }
    default:
      return 0;
  }
}

struct stat Tree::Describe(NodeId ino, mode_t mode, std::uint64_t size,
                           const struct stat& times) const {
  struct stat status = {};
  status.st_ino = ino;
  status.st_mode = mode & ~ownership_.umask;
  status.st_nlink = S_ISDIR(mode) ? 2 : 1;
  status.st_uid = ownership_.uid;
  status.st_gid = ownership_.gid;
  status.st_size = static_cast<off_t>(size);
  status.st_blocks = static_cast<blkcnt_t>((size + 511) / 512);
  status.st_blksize = 4096;
  status.st_atim = times.st_atim;
  status.st_mtim = times.st_mtim;
  status.st_ctim = times.st_ctim;
  return status;
}

struct stat Tree::Type(NodeId id) const {
  struct stat status = {};
  status.st_ino = id;
  status.st_mode = IsDirectory(id) ? S_IFDIR : S_IFREG;
  return status;
}

struct stat Tree::Stat(NodeId id) const {
  const Node node = Decode(id);
  switch (node.kind) {
    case NodeKind::kFolder: {
      const SourceTree::Folder& folder = source_.folders[node.place];
      struct stat status = Describe(id, kDirectoryMode, 0, folder.status);
      status.st_nlink = 2 + folder.subfolders;
      return status;
    }
    case NodeKind::kTensors:
    case NodeKind::kNpyFolder:
      return Describe(id, kDirectoryMode, 0, checkpoint(node).newest_status());
    case NodeKind::kFile: {
      // A file that only its owner may read does not become readable to all.
      const struct stat& source = source_.files[node.index].status;
      return Describe(id, S_IFREG | (source.st_mode & 0555), Size(node), source);
    }
    case NodeKind::kTensor:
    case NodeKind::kNpyTensor:
      return Describe(id, kFileMode, Size(node), checkpoint(node).source_of(node.index).status());
    case NodeKind::kDocument:
      return Describe(id, kFileMode, Size(node), checkpoint(node).newest_status());
    default:
      break;
  }
  throw Error(ENOENT, "no such node");
}

UniqueFd Tree::Open(NodeId id) const {
  const Node node = Decode(id);
  if (node.kind == NodeKind::kFile) {
    const SourceTree::File& file = source_.files[node.index];
    if (file.source == nullptr) {
      struct stat status;
      UniqueFd fd = OpenRegularFile(file.path, status);
      if (IsSameContent(status, file.status)) return fd;
      throw Error(ESTALE, Printable(file.path) + ": was replaced or changed since it was mounted");
    }
    file.source->CheckUnchanged();
  } else if (node.kind == NodeKind::kTensor || node.kind == NodeKind::kNpyTensor) {
    checkpoint(node).source_of(node.index).CheckUnchanged();
  } else if (node.kind == NodeKind::kDocument && node.index == kMerged) {
    for (const SourceFile& source : checkpoint(node).sources) source.CheckUnchanged();
  }
  return {};
}

void Tree::Read(NodeId id, int fd, std::uint64_t offset, std::uint64_t size, Pieces& pieces) const {
  const Node node = Decode(id);
  // The bytes of `source` from `begin` on that the request covers, `skipped` bytes into the file.
  const auto add_range = [&](const SourceFile& source, std::uint64_t begin, std::uint64_t nbytes,
                             std::uint64_t skipped) {
    const std::uint64_t from = std::max(offset, skipped) - skipped;
    const std::uint64_t to = std::min(offset + size, skipped + nbytes);
    if (skipped + from < to) pieces.AddRange(source, begin + from, to - skipped - from);
  };
  switch (node.kind) {
    case NodeKind::kFile: {
      const SourceTree::File& file = source_.files[node.index];
      if (file.source != nullptr) return add_range(*file.source, 0, file.source->size(), 0);
      const std::uint64_t total = Size(node);
      if (offset < total) pieces.AddRange(fd, offset, std::min(size, total - offset));
      return;
    }
    case NodeKind::kTensor: {
      const TensorIndex::Entry& entry = checkpoint(node).index[node.index];
      return add_range(checkpoint(node).sources[entry.source], entry.offset, entry.nbytes, 0);
    }
    case NodeKind::kNpyTensor: {
      const TensorIndex::Entry& entry = checkpoint(node).index[node.index];
      const std::uint64_t header_size = NpyHeaderSizeOf(node);
      if (offset < header_size) pieces.text().append(NpyHeaderOf(node), offset, size);
      return add_range(checkpoint(node).sources[entry.source], entry.offset, entry.nbytes,
                       header_size);
    }
    case NodeKind::kDocument: {
      const Document* document = DocumentOf(node);
      if (document != nullptr) return document->Read(offset, size, pieces.text());
      return generated_[node.place].merged.Read(offset, size, pieces);
    }
    default:
      throw Error(EISDIR, "is a directory");
  }
}

std::optional<Tree::TensorRef> Tree::FindTensor(NodeId id) const {
  const Node node = Decode(id);
  if (node.kind != NodeKind::kTensor && node.kind != NodeKind::kNpyTensor) return std::nullopt;
  return TensorRef{&checkpoint(node), node.index};
}

}  // namespace safetensorfs

#include "fs/filesystem.h"

#include "fs/status.h"

namespace safetensorfs {
namespace {

constexpr char kStatusName[] = ".status";
constexpr mode_t kStatusMode = S_IFREG | 0444;

}  // namespace

Filesystem::Filesystem(const SourceTree& source, Tree::Ownership ownership, Log& logger)
    : tree(source, ownership), log(logger) {
  for (std::uint32_t i = 0; i < source.checkpoints.size(); ++i) {
    const NodeId directory =
        source.is_folder() ? EncodeNode({NodeKind::kTensors, i, 0}) : kRootNode;
    live.Add({directory, kStatusName, kStatusMode,
              [&source, i] { return CheckpointStatus(source, i); }});
  }
  if (source.is_folder()) {
    live.Add({kRootNode, kStatusName, kStatusMode, [&source] { return FolderStatus(source); }});
  }
}

}  // namespace safetensorfs

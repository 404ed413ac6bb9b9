#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/format/checkpoint.h"
#include "core/format/problem.h"

namespace safetensorfs {

/// All that a SOURCE holds, as it was when it was opened: one checkpoint, or a folder with all
/// below it. Immutable and thread-safe.
struct SourceTree {
  enum class Kind : std::uint8_t { kFolder, kFile, kCheckpoint };

  /// One name in a folder; `number` counts folders, files or checkpoints.
  struct Item {
    std::string name;
    Kind kind;
    std::uint32_t number;
  };
  struct Folder {
    std::uint32_t parent;  // the root folder is its own
    std::string path;
    struct stat status;
    std::vector<Item> items;  // sorted by name
    std::uint32_t subfolders = 0;
  };
  /// A regular file of a folder, or a symbolic link that leads to one.
  struct File {
    std::string path;
    struct stat status;
    /// The open source that this file is, else null: then it is opened when it is read.
    const SourceFile* source = nullptr;
  };
  struct OpenCheckpoint {
    std::uint32_t parent;  // folder; 0 where the checkpoint is the root
    std::unique_ptr<Checkpoint> checkpoint;
  };

  std::string path;             // SOURCE, absolute
  std::vector<Folder> folders;  // 0 is the root; empty where SOURCE is one checkpoint
  std::vector<File> files;
  std::vector<OpenCheckpoint> checkpoints;
  /// Checkpoints that are invalid, folders that cannot be read: a line each.
  std::vector<std::string> warnings;

  bool is_folder() const { return !folders.empty(); }
};

/// The tree's warnings and those of its checkpoints.
std::vector<std::string> AllWarnings(const SourceTree& tree);

/// Opens SOURCE: a safetensors file, an index, or a directory; a Hugging Face cache folder
/// `models--ORG--NAME` means the snapshot that its refs/main names. In a directory a checkpoint
/// that is invalid is left out; its problems are added all the same. Otherwise problems mean null.
std::unique_ptr<SourceTree> OpenSource(const std::string& path, Problems& problems);

}  // namespace safetensorfs

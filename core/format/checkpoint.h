#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/format/problem.h"
#include "core/format/source_file.h"
#include "core/format/tensor_index.h"

namespace safetensorfs {

/// A safetensors file, or an index with all its shards: what one directory of tensors shows.
/// Immutable and thread-safe once opened.
struct Checkpoint {
  std::vector<SourceFile> sources;  // TensorIndex::Entry::source counts them
  TensorIndex index;
  /// __metadata__; of shards that disagree, the first shard's.
  Metadata metadata;
  /// What is odd but no error, a line each.
  std::vector<std::string> warnings;
  /// True for one whose data are all of its only source: that file is the mount as one file.
  bool is_single_file = false;

  const SourceFile& source_of(std::uint32_t tensor) const { return sources[index[tensor].source]; }
  /// The newest of the sources' modification times.
  const struct stat& newest_status() const;
};

/// Opens the safetensors file at `path`. On problems, adds them and returns null.
std::unique_ptr<Checkpoint> OpenFile(const std::string& path, Problems& problems);

/// Opens the index at `path` and all its shards, several at once. On problems, adds them and
/// returns null.
std::unique_ptr<Checkpoint> OpenIndex(const std::string& path, Problems& problems);

/// Either, by the name.
std::unique_ptr<Checkpoint> OpenCheckpoint(const std::string& path, Problems& problems);

/// True for names that mean an index: `*.safetensors.index.json`.
bool IsIndexName(std::string_view name);

inline constexpr std::string_view kFileSuffix = ".safetensors";
/// True for names by which a safetensors file is found in a folder.
bool IsFileName(std::string_view name);

}  // namespace safetensorfs

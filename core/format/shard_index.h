#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/format/name_lookup.h"
#include "core/format/problem.h"

namespace safetensorfs {

inline constexpr std::string_view kIndexSuffix = ".safetensors.index.json";

/// The weight_map of a `*.safetensors.index.json`: which shard holds which tensor.
class ShardIndex {
 public:
  struct Listed {
    std::uint64_t name_offset;
    std::uint32_t name_size;
    std::uint32_t shard;
  };

  /// Reads `path`. On problems, adds them (one JSON problem, or one for each bad entry up to 100)
  /// and returns nothing.
  static std::optional<ShardIndex> Read(const std::string& path, Problems& problems);

  /// Shards as the index spells them, relative to its folder, in the order of their names; none
  /// leaves that folder.
  const std::vector<std::string>& shards() const { return shards_; }
  const std::vector<Listed>& tensors() const { return tensors_; }
  std::string_view name(std::uint32_t tensor) const {
    return std::string_view(names_).substr(tensors_[tensor].name_offset,
                                           tensors_[tensor].name_size);
  }
  /// The number of a listed tensor in tensors().
  std::optional<std::uint32_t> Find(std::string_view name) const;

 private:
  friend class ShardIndexHandler;

  void SortShards();
  void BuildLookup(const std::string& path, Problems& problems);

  std::vector<std::string> shards_;
  std::vector<Listed> tensors_;
  std::string names_;
  NameLookup lookup_;
};

}  // namespace safetensorfs

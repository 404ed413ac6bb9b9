#include "core/format/checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/parallel.h"
#include "core/base/text.h"
#include "core/format/shard_index.h"

namespace safetensorfs {
namespace {

struct Shard {
  std::optional<SourceFile> source;
  std::optional<Header> header;
  Problems problems;
  std::vector<bool> listed;  // which of the header's tensors the index gives to this shard
};

// A shard that is not there, or is a folder, is a mistake of the index.
bool IsUnreadable(int code) {
  return code != ENOENT && code != EISDIR && code != ENOTDIR && code != EINVAL;
}

std::size_t CountListed(const ShardIndex& index, std::uint32_t shard) {
  return static_cast<std::size_t>(
      std::count_if(index.tensors().begin(), index.tensors().end(),
                    [shard](const ShardIndex::Listed& tensor) { return tensor.shard == shard; }));
}

// Merges what the index lists with what the shards hold.
class Merger {
 public:
  Merger(const std::string& path, const ShardIndex& index, std::vector<Shard>& shards)
      : path_(path), index_(index), shards_(shards), found_(index.tensors().size()) {}

  void OpenShard(std::uint32_t number) {
    Shard& shard = shards_[number];
    const std::string path =
        (std::filesystem::path(path_).parent_path() / index_.shards()[number]).string();
    try {
      shard.source.emplace(path);
      shard.header = ReadHeader(*shard.source, shard.problems);
    } catch (const Error& error) {
      if (!IsUnreadable(error.code())) {
        shard.problems.push_back(
            {Fault::kShards,
             Printable(path_) + ": shard " + Quoted(index_.shards()[number]) +
                 (error.code() == ENOENT ? " is missing" : " is no file") +
                 "; tensors that the index puts there: " + Grouped(CountListed(index_, number))});
      } else {
        shard.problems.push_back({Fault::kUnreadable, error.what()});
      }
    }
    shard.listed.assign(shard.header ? shard.header->tensors.size() : 0, false);
  }

  void Match(std::vector<std::string>& warnings) {
    for (std::uint32_t number = 0; number < shards_.size(); ++number) {
      if (shards_[number].header) MatchShard(number, warnings);
    }
  }

  void ReportMissing(Problems& problems) const {
    for (std::uint32_t i = 0; i < found_.size(); ++i) {
      const std::uint32_t shard = index_.tensors()[i].shard;
      if (found_[i] || !shards_[shard].header || *index_.Find(index_.name(i)) != i) continue;
      if (problems.size() >= kMaxProblems) return;
      problems.push_back({Fault::kShards, Printable(path_) + ": tensor " + Quoted(index_.name(i)) +
                                              " is not in shard " + Quoted(index_.shards()[shard]) +
                                              ", where the index puts it"});
    }
  }

 private:
  void MatchShard(std::uint32_t number, std::vector<std::string>& warnings) {
    Shard& shard = shards_[number];
    std::size_t unlisted = 0;
    std::string first;
    for (std::size_t i = 0; i < shard.header->tensors.size(); ++i) {
      const std::string_view name = shard.header->name(shard.header->tensors[i]);
      const auto listed = index_.Find(name);
      if (listed && index_.tensors()[*listed].shard == number) {
        shard.listed[i] = true;
        found_[*listed] = true;
      } else if (unlisted++ == 0) {
        first = Quoted(name);
      }
    }
    if (unlisted == 0) return;
    warnings.push_back(Printable(shard.source->path()) + ": " + Grouped(unlisted) +
                       " tensors that the index does not list there are not shown, first " + first);
  }

  const std::string& path_;
  const ShardIndex& index_;
  std::vector<Shard>& shards_;
  std::vector<bool> found_;
};

// Keys of `shard` that no earlier shard has are added.
void MergeMetadata(const Shard& shard, Metadata& merged, std::vector<std::string>& warnings) {
  const Metadata& own = shard.header->metadata;
  std::vector<std::size_t> fresh;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const auto known = merged.Find(own.key(i));
    if (!known) {
      fresh.push_back(i);
    } else if (*known != own.value(i)) {
      warnings.push_back(Printable(shard.source->path()) + ": __metadata__ " + Quoted(own.key(i)) +
                         " differs from an earlier shard's, which is shown");
    }
  }
  for (const std::size_t i : fresh) merged.Add(own.key(i), std::string(own.value(i)));
  merged.Finish();
}

}  // namespace

const struct stat& Checkpoint::newest_status() const {
  return std::max_element(sources.begin(), sources.end(),
                          [](const SourceFile& a, const SourceFile& b) {
                            const timespec x = a.status().st_mtim;
                            const timespec y = b.status().st_mtim;
                            return x.tv_sec != y.tv_sec ? x.tv_sec < y.tv_sec
                                                        : x.tv_nsec < y.tv_nsec;
                          })
      ->status();
}

std::unique_ptr<Checkpoint> OpenFile(const std::string& path, Problems& problems) {
  try {
    auto checkpoint = std::make_unique<Checkpoint>();
    checkpoint->sources.emplace_back(path);
    std::optional<Header> header = ReadHeader(checkpoint->sources.front(), problems);
    if (!header) return nullptr;
    checkpoint->metadata = std::exchange(header->metadata, {});
    checkpoint->index.Add(0, std::move(*header));
    checkpoint->index.Finish();
    checkpoint->is_single_file = true;
    return checkpoint;
  } catch (const Error& error) {
    problems.push_back({Fault::kUnreadable, error.what()});
    return nullptr;
  }
}

std::unique_ptr<Checkpoint> OpenIndex(const std::string& path, Problems& problems) {
  const std::optional<ShardIndex> index = ShardIndex::Read(path, problems);
  if (!index) return nullptr;
  if (index->shards().empty()) {
    problems.push_back({Fault::kShards, Printable(path) + ": weight_map lists no tensors"});
    return nullptr;
  }
  std::vector<Shard> shards(index->shards().size());
  Merger merger(path, *index, shards);
  ParallelFor(shards.size(),
              [&](std::size_t i) { merger.OpenShard(static_cast<std::uint32_t>(i)); });

  auto checkpoint = std::make_unique<Checkpoint>();
  merger.Match(checkpoint->warnings);
  Problems found;
  for (Shard& shard : shards)
    found.insert(found.end(), shard.problems.begin(), shard.problems.end());
  merger.ReportMissing(found);
  problems.insert(problems.end(), found.begin(), found.end());
  if (!found.empty()) return nullptr;

  for (std::uint32_t i = 0; i < shards.size(); ++i) {
    Shard& shard = shards[i];
    MergeMetadata(shard, checkpoint->metadata, checkpoint->warnings);
    checkpoint->index.Add(i, std::move(*shard.header), shard.listed);
    shard.header.reset();
    checkpoint->sources.push_back(std::move(*shard.source));
  }
  checkpoint->index.Finish();
  return checkpoint;
}

bool IsIndexName(std::string_view name) {
  return name.size() > kIndexSuffix.size() && name.ends_with(kIndexSuffix);
}

bool IsFileName(std::string_view name) {
  return name.size() > kFileSuffix.size() && name.ends_with(kFileSuffix);
}

std::unique_ptr<Checkpoint> OpenCheckpoint(const std::string& path, Problems& problems) {
  return IsIndexName(std::filesystem::path(path).filename().string()) ? OpenIndex(path, problems)
                                                                      : OpenFile(path, problems);
}

}  // namespace safetensorfs

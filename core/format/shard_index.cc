#include "core/format/shard_index.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/format/header_window.h"
#include "core/format/json_error.h"

namespace safetensorfs {
namespace {

bool LeavesFolder(const std::string& shard) {
  if (shard.empty() || shard.find('\0') != shard.npos) return true;
  const std::filesystem::path path = std::filesystem::path(shard).lexically_normal();
  return path.is_absolute() || path == "." || *path.begin() == "..";
}

}  // namespace

// The SAX events of an index. Only the top-level "weight_map" is looked at.
class ShardIndexHandler {
 public:
  ShardIndexHandler(ShardIndex& index, const std::string& path, Problems& problems)
      : index_(index), path_(path), problems_(problems) {}

  bool has_weight_map() const { return has_weight_map_; }

  bool null() { return Other("null"); }
  bool boolean(bool) { return Other("a boolean"); }
  bool number_integer(std::int64_t) { return Other("a number"); }
  bool number_unsigned(std::uint64_t) { return Other("a number"); }
  bool number_float(double, const std::string&) { return Other("a number"); }
  bool binary(nlohmann::json::binary_t&) { return Other("binary"); }

  bool string(std::string& value) {
    if (depth_ != 2 || !in_weight_map_) return Other("a string");
    if (LeavesFolder(value)) {
      Report(Fault::kShards, "weight_map puts tensor " + Quoted(last_name()) + " into " +
                                 Quoted(value) + ", which is not a path below the index's folder");
      return problems_.size() < kMaxProblems;
    }
    const auto [at, is_new] =
        shard_numbers_.emplace(value, static_cast<std::uint32_t>(index_.shards_.size()));
    if (is_new) index_.shards_.push_back(value);
    index_.tensors_.back().shard = at->second;
    return true;
  }

  bool start_object(std::size_t) {
    ++depth_;
    if (depth_ > 2 && in_weight_map_) return WrongEntry("an object");
    return true;
  }
  bool start_array(std::size_t) {
    if (depth_ == 0) return Fail("must be a JSON object, is an array");
    if (in_weight_map_ && depth_ == 1) return Fail("weight_map must be an object, is an array");
    ++depth_;
    return in_weight_map_ ? WrongEntry("an array") : true;
  }
  bool end_object() {
    --depth_;
    return true;
  }
  bool end_array() {
    --depth_;
    return true;
  }

  bool key(std::string& name) {
    if (depth_ == 1) {
      in_weight_map_ = name == "weight_map";
      if (in_weight_map_ && has_weight_map_) return Fail("weight_map is given twice");
      has_weight_map_ = has_weight_map_ || in_weight_map_;
    } else if (depth_ == 2 && in_weight_map_) {
      index_.tensors_.push_back({index_.names_.size(), static_cast<std::uint32_t>(name.size()), 0});
      index_.names_ += name;
    }
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) {
    return Fail("is not valid JSON at byte " + std::to_string(position) + ": " +
                JsonErrorDetail(error.what()));
  }

 private:
  std::string_view last_name() const {
    return index_.name(static_cast<std::uint32_t>(index_.tensors_.size() - 1));
  }

  bool Other(const char* kind) {
    if (depth_ == 0) return Fail(std::string("must be a JSON object, is ") + kind);
    if (depth_ == 1 && in_weight_map_) {
      return Fail(std::string("weight_map must be an object, is ") + kind);
    }
    return depth_ == 2 && in_weight_map_ ? WrongEntry(kind) : true;
  }

  bool WrongEntry(const char* kind) {
    return Fail("weight_map gives tensor " + Quoted(last_name()) + " no file name but " + kind);
  }

  bool Fail(const std::string& rule) {
    Report(Fault::kInvalid, rule);
    return false;
  }

  void Report(Fault fault, const std::string& text) {
    problems_.push_back({fault, Printable(path_) + ": " + text});
  }

  ShardIndex& index_;
  const std::string& path_;
  Problems& problems_;
  std::map<std::string, std::uint32_t, std::less<>> shard_numbers_;
  int depth_ = 0;
  bool in_weight_map_ = false;
  bool has_weight_map_ = false;
};

std::optional<ShardIndex> ShardIndex::Read(const std::string& path, Problems& problems) {
  ShardIndex index;
  Problems found;
  try {
    const SourceFile source(path);
    HeaderWindow window(source, 0, source.size());
    ShardIndexHandler handler(index, path, found);
    const bool parsed =
        nlohmann::json::sax_parse(HeaderIterator(window), HeaderIterator(), &handler);
    if (parsed && !window.at_end()) {
      // The parser takes NUL for the end.
      found.push_back({Fault::kInvalid, Printable(path) + ": holds a NUL byte after its JSON"});
    } else if (parsed && !handler.has_weight_map()) {
      found.push_back({Fault::kInvalid, Printable(path) + ": has no weight_map"});
    }
  } catch (const Error& error) {
    found.push_back({Fault::kUnreadable, error.what()});
  }
  if (found.empty()) {
    index.SortShards();
    index.BuildLookup(path, found);
  }
  problems.insert(problems.end(), found.begin(), found.end());
  if (!found.empty()) return std::nullopt;
  return index;
}

void ShardIndex::SortShards() {
  std::vector<std::uint32_t> order(shards_.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [this](std::uint32_t a, std::uint32_t b) { return shards_[a] < shards_[b]; });
  std::vector<std::uint32_t> rank(shards_.size());
  std::vector<std::string> sorted(shards_.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) {
    rank[order[i]] = i;
    sorted[i] = std::move(shards_[order[i]]);
  }
  shards_ = std::move(sorted);
  for (Listed& tensor : tensors_) tensor.shard = rank[tensor.shard];
}

void ShardIndex::BuildLookup(const std::string& path, Problems& problems) {
  lookup_.Build(
      static_cast<std::uint32_t>(tensors_.size()), [this](std::uint32_t i) { return name(i); },
      [&](std::uint32_t first, std::uint32_t again) {
        if (tensors_[first].shard == tensors_[again].shard || problems.size() >= kMaxProblems)
          return;
        problems.push_back({Fault::kShards, Printable(path) + ": weight_map puts tensor " +
                                                Quoted(name(first)) + " into two shards, " +
                                                Quoted(shards_[tensors_[first].shard]) + " and " +
                                                Quoted(shards_[tensors_[again].shard])});
      });
}

std::optional<std::uint32_t> ShardIndex::Find(std::string_view wanted) const {
  return lookup_.Find(wanted, [this](std::uint32_t i) { return name(i); });
}

}  // namespace safetensorfs

#include "core/format/tensor_index.h"

#include <cerrno>
#include <utility>

#include "core/base/error.h"
#include "core/format/file_name.h"

namespace safetensorfs {
namespace {

constexpr std::uint64_t kMaxNames = std::uint64_t{1} << 37;
constexpr std::uint32_t kMaxSources = std::uint32_t{1} << 24;
constexpr std::uint64_t kMaxCount = UINT32_MAX;  // of tensors and of shape elements

}  // namespace

void TensorIndex::Add(std::uint32_t source, Header header, const std::vector<bool>& listed) {
  const std::uint64_t name_base = names_.size();
  const std::uint64_t shape_base = shapes_.size();
  if (source >= kMaxSources || name_base + header.names.size() > kMaxNames ||
      shape_base + header.shapes.size() > kMaxCount ||
      entries_.size() + header.tensors.size() > kMaxCount) {
    throw Error(
        EFBIG, "more tensors than an index can number: 2^24 files, 2^32-1 tensors or dimensions, " +
                   std::to_string(kMaxNames) + " bytes of names");
  }
  if (entries_.empty() && listed.empty()) lookup_ = std::move(header.lookup);
  if (names_.empty() && shapes_.empty()) {
    names_ = std::move(header.names);
    shapes_ = std::move(header.shapes);
  } else {
    names_ += header.names;
    shapes_.insert(shapes_.end(), header.shapes.begin(), header.shapes.end());
  }
  entries_.reserve(entries_.size() + header.tensors.size());
  for (std::size_t i = 0; i < header.tensors.size(); ++i) {
    if (!listed.empty() && !listed[i]) continue;
    const TensorInfo& tensor = header.tensors[i];
    Entry entry{};
    entry.name_offset = (name_base + tensor.name_offset) & (kMaxNames - 1);
    entry.name_size = tensor.name_size;
    entry.offset = header.data_offset + tensor.begin;
    entry.nbytes = tensor.nbytes();
    entry.shape_offset = static_cast<std::uint32_t>(shape_base + tensor.shape_offset);
    entry.rank = tensor.rank;
    entry.source = source & (kMaxSources - 1);
    entry.dtype = static_cast<std::uint32_t>(tensor.dtype);
    entries_.push_back(entry);
  }
}

void TensorIndex::Finish() {
  // The table of a single header serves as it is.
  if (lookup_.count() != size())
    lookup_.Build(
        size(), [this](std::uint32_t i) { return name(i); }, [](std::uint32_t, std::uint32_t) {});
  NameLongOnes();
}

void TensorIndex::NameLongOnes() {
  for (std::uint32_t i = 0; i < size(); ++i) {
    if (!NeedsShortening(name(i))) continue;
    for (std::uint64_t attempt = 0;; ++attempt) {
      std::string file_name = ShortenedName(name(i), attempt);
      if (long_files_.emplace(file_name, i).second) {
        long_names_.emplace(i, std::move(file_name));
        break;
      }
    }
  }
}

std::string TensorIndex::FileName(std::uint32_t tensor) const {
  if (!long_names_.empty()) {
    if (const auto at = long_names_.find(tensor); at != long_names_.end()) return at->second;
  }
  return EscapeName(name(tensor));
}

std::optional<std::uint32_t> TensorIndex::FindName(std::string_view wanted) const {
  return lookup_.Find(wanted, [this](std::uint32_t i) { return name(i); });
}

std::optional<std::uint32_t> TensorIndex::FindFile(std::string_view file_name) const {
  if (file_name.find("%~") != file_name.npos) {
    const auto at = long_files_.find(file_name);
    if (at == long_files_.end()) return std::nullopt;
    return at->second;
  }
  if (file_name.size() > kMaxFileName) return std::nullopt;
  const auto name = UnescapeName(file_name);
  return name ? FindName(*name) : std::nullopt;
}

}  // namespace safetensorfs

#include "core/tree/merged_file.h"

#include <algorithm>
#include <cerrno>
#include <numeric>

#include "core/base/error.h"
#include "core/base/text.h"

namespace safetensorfs {
namespace {

// Rows of the header: one opens it, one for each tensor, one closes it.
constexpr std::uint64_t kExtraRows = 2;

}  // namespace

MergedFile::MergedFile(const Checkpoint& checkpoint)
    : checkpoint_(checkpoint), header_(checkpoint.index.size() + kExtraRows, [this] {
        return [this](std::uint64_t row, std::string& out) { RenderRow(row, out); };
      }) {}

void MergedFile::LayOut() const {
  std::call_once(laid_out_, [this] {
    const TensorIndex& index = checkpoint_.index;
    order_.resize(index.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(), [&index](std::uint32_t a, std::uint32_t b) {
      return index.dtype(a).bits > index.dtype(b).bits;
    });
    std::uint64_t at = 0;
    begins_.reserve(order_.size() + 1);
    for (const std::uint32_t tensor : order_) {
      begins_.push_back(at);
      const TensorIndex::Entry& entry = index[tensor];
      if (entry.nbytes == 0) continue;
      if (!ranges_.empty() && ranges_.back().source == entry.source &&
          ranges_.back().offset + ranges_.back().size == entry.offset) {
        ranges_.back().size += entry.nbytes;
      } else {
        ranges_.push_back({at, entry.offset, entry.nbytes, entry.source});
      }
      at += entry.nbytes;
    }
    begins_.push_back(at);
  });
}

void MergedFile::RenderRow(std::uint64_t row, std::string& out) const {
  const TensorIndex& index = checkpoint_.index;
  if (row == 0) {
    out += "{";
    const Metadata& metadata = checkpoint_.metadata;
    if (metadata.size() == 0) return;
    out += "\"__metadata__\":{";
    for (std::size_t i = 0; i < metadata.size(); ++i) {
      if (i > 0) out += ',';
      AppendJsonString(metadata.key(i), out);
      out += ':';
      AppendJsonString(metadata.value(i), out);
    }
    out += order_.empty() ? "}" : "},";
    return;
  }
  if (row > order_.size()) {
    out += '}';
    return;
  }
  const std::uint32_t tensor = order_[row - 1];
  AppendJsonString(index.name(tensor), out);
  out += ":{\"dtype\":\"";
  out += index.dtype(tensor).name;
  out += "\",\"shape\":";
  AppendShape(index.shape(tensor), out);
  const std::uint64_t begin = begins_[row - 1];
  out += ",\"data_offsets\":[" + std::to_string(begin) + ',' +
         std::to_string(begin + index[tensor].nbytes) + "]}";
  if (row < order_.size()) out += ',';
}

// The header is padded to 8 bytes with spaces, as the reference's writer does.
std::uint64_t MergedFile::data_offset() const {
  LayOut();
  const std::uint64_t padded = (header_.size() + 7) / 8 * 8;
  if (padded > kMaxHeaderSize) {
    throw Error(EFBIG, ".all.safetensors: the header of all shards is " + std::to_string(padded) +
                           " bytes, the format's limit is " + std::to_string(kMaxHeaderSize));
  }
  return 8 + padded;
}

std::uint64_t MergedFile::size() const {
  if (checkpoint_.is_single_file) return checkpoint_.sources.front().size();
  const std::uint64_t offset = data_offset();
  return offset + begins_.back();
}

void MergedFile::Read(std::uint64_t offset, std::uint64_t size, Pieces& pieces) const {
  const std::uint64_t total = this->size();
  if (offset >= total) return;
  const std::uint64_t end = offset + std::min(size, total - offset);
  if (checkpoint_.is_single_file) {
    pieces.AddRange(checkpoint_.sources.front(), offset, end - offset);
    return;
  }
  const std::uint64_t data = data_offset();
  if (offset < data) {
    std::string& text = pieces.text();
    std::uint64_t at = offset;
    for (; at < std::min<std::uint64_t>(end, 8); ++at) {
      text += static_cast<char>((data - 8) >> (8 * at) & 0xFF);
    }
    if (at < end) header_.Read(at - 8, std::min(end, data) - at, text);
    text.resize(std::min(end, data) - offset, ' ');
    offset = std::min(end, data);
  }
  if (offset >= end) return;
  auto range = std::upper_bound(
      ranges_.begin(), ranges_.end(), offset - data,
      [](std::uint64_t at, const Range& candidate) { return at < candidate.begin; });
  for (--range; offset < end; ++range) {
    const std::uint64_t skip = offset - data - range->begin;
    const std::uint64_t take = std::min(end - offset, range->size - skip);
    pieces.AddRange(checkpoint_.sources[range->source], range->offset + skip, take);
    offset += take;
  }
}

}  // namespace safetensorfs

#include "core/format/metadata.h"

#include <algorithm>
#include <cerrno>
#include <limits>

#include "core/base/error.h"

namespace safetensorfs {

void Metadata::Add(std::string_view key, std::string value) {
  if (text_.size() + key.size() + kMaxSmall > std::numeric_limits<std::uint32_t>::max()) {
    throw Error(EFBIG, "__metadata__ of all shards holds more than 4 GiB");
  }
  const auto key_offset = static_cast<std::uint32_t>(text_.size());
  const auto key_size = static_cast<std::uint32_t>(key.size());
  text_ += key;
  if (value.size() <= kMaxSmall) {
    text_ += value;
    entries_.push_back({key_offset, key_size, static_cast<std::uint32_t>(value.size())});
  } else {
    entries_.push_back(
        {key_offset, key_size, kFirstLarge + static_cast<std::uint32_t>(large_.size())});
    large_.push_back(std::move(value));
  }
}

void Metadata::Finish() {
  const auto key_of = [this](const Entry& entry) {
    return std::string_view(text_).substr(entry.key_offset, entry.key_size);
  };
  // What was added last stands first among equal keys.
  std::sort(entries_.begin(), entries_.end(), [&](const Entry& a, const Entry& b) {
    const int order = key_of(a).compare(key_of(b));
    return order != 0 ? order < 0 : a.key_offset > b.key_offset;
  });
  const auto same = [&](const Entry& a, const Entry& b) { return key_of(a) == key_of(b); };
  entries_.erase(std::unique(entries_.begin(), entries_.end(), same), entries_.end());
}

std::string_view Metadata::key(std::size_t entry) const {
  return std::string_view(text_).substr(entries_[entry].key_offset, entries_[entry].key_size);
}

std::string_view Metadata::value(std::size_t entry) const {
  const Entry& at = entries_[entry];
  if (at.value >= kFirstLarge) return large_[at.value - kFirstLarge];
  return std::string_view(text_).substr(at.key_offset + at.key_size, at.value);
}

std::optional<std::string_view> Metadata::Find(std::string_view wanted) const {
  std::size_t low = 0;
  std::size_t high = size();
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (key(middle) < wanted) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == size() || key(low) != wanted) return std::nullopt;
  return value(low);
}

}  // namespace safetensorfs

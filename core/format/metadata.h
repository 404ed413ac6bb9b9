#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace safetensorfs {

/// A header's `__metadata__`: strings by key. A header may hold millions of tiny entries or one of
/// 100 MB, so texts lie in one pool with 12 bytes an entry, and large values are taken, not copied.
/// Filled by Add, then sorted once by Finish; from then on immutable and thread-safe.
class Metadata {
 public:
  /// Throws Error (EFBIG) past 4 GiB of text.
  void Add(std::string_view key, std::string value);
  /// Sorts by key. Of a key that was added more than once the last value stays, as in the
  /// reference.
  void Finish();

  std::size_t size() const { return entries_.size(); }
  std::string_view key(std::size_t entry) const;
  std::string_view value(std::size_t entry) const;
  /// After Finish.
  std::optional<std::string_view> Find(std::string_view key) const;

 private:
  struct Entry {
    std::uint32_t key_offset;  // bytes into text_
    std::uint32_t key_size;
    std::uint32_t value;  // its size, behind the key; from kFirstLarge on: its number in large_
  };
  static constexpr std::size_t kMaxSmall = 64 * 1024;  // bytes of a value that goes into the pool
  static constexpr std::uint32_t kFirstLarge = std::uint32_t{1} << 31;

  std::string text_;
  std::vector<Entry> entries_;
  std::vector<std::string> large_;
};

}  // namespace safetensorfs

#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>
#include <cstdint>
#include <optional>
#include <random>
#include <string_view>
#include <vector>

namespace safetensorfs {

/// An open-addressing hash table from names to their numbers 0 to n-1, four bytes a slot; the names
/// stay where they are, and a callable `name_of(number)` gives them. The hash is seeded at random,
/// so that no file can be made to collide. Built once; Find is thread-safe.
class NameLookup {
 public:
  /// Takes the names 0 to count-1. `duplicate(first, again)` is called for each name that stands
  /// there already; it keeps its first number.
  template <typename NameOf, typename Duplicate>
  void Build(std::uint32_t count, const NameOf& name_of, const Duplicate& duplicate) {
    seed_ = std::random_device{}();
    count_ = count;
    slots_.assign(std::bit_ceil(std::size_t{count} + count / 2 + 1), kFree);
    for (std::uint32_t number = 0; number < count; ++number) {
      std::uint32_t& slot = slots_[SlotOf(name_of(number), name_of)];
      if (slot == kFree) {
        slot = number;
      } else {
        duplicate(slot, number);
      }
    }
  }

  /// How many names it was built of.
  std::uint32_t count() const { return count_; }

  template <typename NameOf>
  std::optional<std::uint32_t> Find(std::string_view name, const NameOf& name_of) const {
    if (slots_.empty()) return std::nullopt;
    const std::uint32_t number = slots_[SlotOf(name, name_of)];
    if (number == kFree) return std::nullopt;
    return number;
  }

 private:
  static constexpr std::uint32_t kFree = UINT32_MAX;

  // Where `name` is, or the free slot where it would be.
  template <typename NameOf>
  std::size_t SlotOf(std::string_view name, const NameOf& name_of) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = XXH3_64bits_withSeed(name.data(), name.size(), seed_) & mask;
    while (slots_[at] != kFree && name_of(slots_[at]) != name) at = (at + 1) & mask;
    return at;
  }

  std::vector<std::uint32_t> slots_;
  std::uint64_t seed_ = 0;
  std::uint32_t count_ = 0;
};

}  // namespace safetensorfs

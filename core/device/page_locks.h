#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace safetensorfs {

/// A range of bytes, [begin, end).
struct ByteRange {
  std::uint64_t begin;
  std::uint64_t end;

  std::uint64_t size() const { return end - begin; }
  bool operator==(const ByteRange&) const = default;
};

/// How often each page of a mapping is wanted locked: mlock(2) does not count, and neighbouring
/// tensors share pages. Kept as the boundaries at which the count changes. Not thread-safe.
class PageLocks {
 public:
  /// Counts the pages of `range` up, and returns the ranges of those that had none: lock them.
  std::vector<ByteRange> Add(ByteRange range);
  /// Counts them down, and returns the ranges of those that have none left: unlock them.
  std::vector<ByteRange> Remove(ByteRange range);

  /// The ranges of pages below `end` that are not counted.
  std::vector<ByteRange> Gaps(std::uint64_t end) const;

  /// Bytes of pages that are counted.
  std::uint64_t locked_nbytes() const { return locked_nbytes_; }

 private:
  std::vector<ByteRange> Change(ByteRange range, int step);
  void Split(std::uint64_t at);
  void Join(std::uint64_t at);

  std::map<std::uint64_t, int> counts_;  // from this byte on
  std::uint64_t locked_nbytes_ = 0;
};

/// The pages that hold `range`; an empty range holds none.
ByteRange PagesOf(ByteRange range);

}  // namespace safetensorfs

#include "core/device/page_locks.h"

#include <unistd.h>

#include <iterator>

namespace safetensorfs {

ByteRange PagesOf(ByteRange range) {
  static const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  if (range.begin >= range.end) return {0, 0};
  return {range.begin / page * page, (range.end + page - 1) / page * page};
}

void PageLocks::Split(std::uint64_t at) {
  const auto after = counts_.upper_bound(at);
  const int count = after == counts_.begin() ? 0 : std::prev(after)->second;
  counts_.emplace(at, count);
}

// Drops a boundary at which nothing changes.
void PageLocks::Join(std::uint64_t at) {
  const auto here = counts_.find(at);
  if (here == counts_.end()) return;
  const int before = here == counts_.begin() ? 0 : std::prev(here)->second;
  if (before == here->second) counts_.erase(here);
}

std::vector<ByteRange> PageLocks::Change(ByteRange range, int step) {
  std::vector<ByteRange> changed;
  const ByteRange pages = PagesOf(range);
  if (pages.size() == 0) return changed;
  Split(pages.begin);
  Split(pages.end);
  const auto end = counts_.find(pages.end);
  for (auto at = counts_.find(pages.begin); at != end; ++at) {
    const int before = at->second;
    at->second += step;
    if ((before == 0) == (at->second == 0)) continue;
    const std::uint64_t to = std::next(at)->first;
    if (!changed.empty() && changed.back().end == at->first) {
      changed.back().end = to;
    } else {
      changed.push_back({at->first, to});
    }
  }
  // Inside the range neighbours keep differing: they all moved by one step.
  Join(pages.begin);
  Join(pages.end);
  return changed;
}

std::vector<ByteRange> PageLocks::Add(ByteRange range) {
  std::vector<ByteRange> changed = Change(range, 1);
  for (const ByteRange& part : changed) locked_nbytes_ += part.size();
  return changed;
}

std::vector<ByteRange> PageLocks::Remove(ByteRange range) {
  std::vector<ByteRange> changed = Change(range, -1);
  for (const ByteRange& part : changed) locked_nbytes_ -= part.size();
  return changed;
}

std::vector<ByteRange> PageLocks::Gaps(std::uint64_t end) const {
  std::vector<ByteRange> gaps;
  std::uint64_t begin = 0;
  bool is_counted = false;
  for (const auto& [at, count] : counts_) {
    if (!is_counted && count > 0 && begin < at) gaps.push_back({begin, at});
    if (is_counted && count == 0) begin = at;
    is_counted = count > 0;
  }
  if (!is_counted && begin < end) gaps.push_back({begin, end});
  return gaps;
}

}  // namespace safetensorfs

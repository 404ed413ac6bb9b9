#include "core/device/page_locks.h"

#include <random>
#include <vector>

#include "tests/catch.h"

namespace safetensorfs {
namespace {

constexpr std::uint64_t kPage = 4096;
using Ranges = std::vector<ByteRange>;

}  // namespace

TEST_CASE("Pages are locked once and unlocked when nobody wants them any more") {
  PageLocks locks;
  CHECK(locks.Add({100, 5000}) == Ranges{{0, 2 * kPage}});
  CHECK(locks.Add({5000, 5001}).empty());
  CHECK(locks.Add({5001, 3 * kPage}) == Ranges{{2 * kPage, 3 * kPage}});
  CHECK(locks.locked_nbytes() == 3 * kPage);
  CHECK(locks.Remove({100, 5000}) == Ranges{{0, kPage}});
  CHECK(locks.Remove({5000, 5001}).empty());
  CHECK(locks.Remove({5001, 3 * kPage}) == Ranges{{kPage, 3 * kPage}});
  CHECK(locks.locked_nbytes() == 0);
}

TEST_CASE("An empty range locks nothing") {
  PageLocks locks;
  CHECK(locks.Add({5000, 5000}).empty());
  CHECK(locks.Remove({5000, 5000}).empty());
}

TEST_CASE("Any order of adding and removing agrees with counting each page") {
  std::mt19937 random(1);
  PageLocks locks;
  std::vector<int> counts(64);
  std::vector<ByteRange> held;
  for (int step = 0; step < 5000; ++step) {
    const bool adds = held.empty() || random() % 2 == 0;
    ByteRange range;
    if (adds) {
      range.begin = random() % (60 * kPage);
      range.end = range.begin + random() % (4 * kPage);
      held.push_back(range);
    } else {
      std::swap(held[random() % held.size()], held.back());
      range = held.back();
      held.pop_back();
    }
    std::vector<bool> is_changed(counts.size());
    const ByteRange pages = PagesOf(range);
    for (std::uint64_t page = pages.begin / kPage; page < pages.end / kPage; ++page) {
      const int before = counts[page];
      counts[page] += adds ? 1 : -1;
      is_changed[page] = (before == 0) != (counts[page] == 0);
    }
    std::vector<bool> reported(counts.size());
    for (const ByteRange& part : adds ? locks.Add(range) : locks.Remove(range)) {
      for (std::uint64_t page = part.begin / kPage; page < part.end / kPage; ++page)
        reported[page] = true;
    }
    REQUIRE(reported == is_changed);
    std::vector<bool> is_gap(counts.size());
    for (const ByteRange& gap : locks.Gaps(counts.size() * kPage)) {
      for (std::uint64_t page = gap.begin / kPage; page < gap.end / kPage; ++page) {
        is_gap[page] = true;
      }
    }
    for (std::size_t page = 0; page < counts.size(); ++page) {
      REQUIRE(is_gap[page] == (counts[page] == 0));
    }
  }
}

}  // namespace safetensorfs

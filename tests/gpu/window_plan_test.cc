#include "gpu/worker/window_plan.h"

#include <random>

#include "tests/catch.h"

namespace safetensorfs {
namespace {

constexpr std::uint64_t kLimit = 1000;
constexpr std::uint64_t kGap = 256;

// Tensors of one slab one after the other, at multiples of 256 bytes there and close together in
// the source.
std::vector<Transfer> Packed(const std::vector<std::uint64_t>& sizes) {
  std::vector<Transfer> transfers;
  std::uint64_t slab_offset = 0;
  std::uint64_t source_offset = 77;
  for (const std::uint64_t nbytes : sizes) {
    const auto tensor = static_cast<std::uint32_t>(transfers.size());
    transfers.push_back({1, slab_offset, source_offset, nbytes, 0, tensor});
    slab_offset = (slab_offset + nbytes + 255) / 256 * 256;
    source_offset += nbytes;
  }
  return transfers;
}

// Every byte of every transfer lies in one window, at its place.
void CheckCovered(const std::vector<Transfer>& transfers, const std::vector<Window>& windows,
                  std::uint64_t limit) {
  std::vector<std::uint64_t> covered(transfers.size());
  for (const Window& window : windows) {
    CHECK(window.end - window.begin <= limit);
    CHECK(window.first < window.last);
    for (std::size_t i = window.first; i < window.last; ++i) {
      const WindowPart part = PartOf(window, transfers[i]);
      CHECK(part.nbytes > 0);
      CHECK(window.slab == transfers[i].slab);
      CHECK(part.tensor == transfers[i].tensor);
      CHECK(part.source_offset == transfers[i].source_offset + covered[i]);
      CHECK(window.begin + part.window_offset == transfers[i].slab_offset + covered[i]);
      CHECK(part.window_offset + part.nbytes <= window.end - window.begin);
      covered[i] += part.nbytes;
    }
  }
  for (std::size_t i = 0; i < transfers.size(); ++i) CHECK(covered[i] == transfers[i].nbytes);
}

}  // namespace

TEST_CASE("Small tensors share a window, as they lie in the slab") {
  const auto transfers = Packed({100, 300, 1});
  const auto windows = PlanWindows(transfers, kLimit, kGap);
  REQUIRE(windows.size() == 1);
  CHECK(windows[0].begin == 0);
  CHECK(windows[0].end == 769);
  CHECK(PartOf(windows[0], transfers[2]).window_offset == 768);
  CheckCovered(transfers, windows, kLimit);
}

TEST_CASE("A tensor that does not fit a window goes whole into the next") {
  const auto transfers = Packed({600, 300, 400});
  const auto windows = PlanWindows(transfers, kLimit, kGap);
  REQUIRE(windows.size() == 2);
  CHECK(windows[0].end == 600);
  CHECK(windows[1].begin == 768);
  CheckCovered(transfers, windows, kLimit);
}

TEST_CASE("A tensor larger than a window is cut, and fills the one before it") {
  const auto transfers = Packed({512, 2500, 100});
  const auto windows = PlanWindows(transfers, kLimit, kGap);
  REQUIRE(windows.size() == 4);
  CHECK(windows[0].end == 1000);
  CHECK(windows[3].begin == 3000);
  CheckCovered(transfers, windows, kLimit);
}

TEST_CASE("Windows cross neither slabs nor gaps that others may hold") {
  auto transfers = Packed({100, 100, 100, 100});
  transfers[1].slab_offset = 512;  // what lay between was unloaded
  transfers[2].slab_offset = 768;
  transfers[3].slab = 2;
  transfers[3].slab_offset = 0;
  const auto windows = PlanWindows(transfers, kLimit, kGap);
  REQUIRE(windows.size() == 3);
  CHECK(windows[1].begin == 512);
  CHECK(windows[2].slab == 2);
  CheckCovered(transfers, windows, kLimit);
}

TEST_CASE("Windows cover any sizes") {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::uint64_t> sizes(random() % 40 + 1);
    for (std::uint64_t& size : sizes) size = random() % (random() % 4 == 0 ? 5000 : 300) + 1;
    const auto transfers = Packed(sizes);
    CheckCovered(transfers, PlanWindows(transfers, kLimit, kGap), kLimit);
  }
}

}  // namespace safetensorfs

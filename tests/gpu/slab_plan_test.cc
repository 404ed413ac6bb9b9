#include "gpu/device/slab_plan.h"

#include <string>

#include "tests/catch.h"

namespace safetensorfs {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

// Tensors of these sizes, one after the other, without a file.
TensorIndex IndexOf(const std::vector<std::uint64_t>& sizes) {
  Header header;
  header.data_offset = 1000;
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    TensorInfo info = {};
    info.name_offset = header.names.size() & 0xFFFFFF;
    header.names += "t" + std::to_string(i);
    info.name_size = (header.names.size() - info.name_offset) & 0xFF;
    info.dtype = Dtype::kU8;
    info.begin = at;
    info.end = at += sizes[i];
    header.tensors.push_back(info);
  }
  TensorIndex index;
  index.Add(0, std::move(header));
  index.Finish();
  return index;
}

std::vector<std::uint32_t> First(std::uint32_t count) {
  std::vector<std::uint32_t> tensors(count);
  for (std::uint32_t i = 0; i < count; ++i) tensors[i] = i;
  return tensors;
}

}  // namespace

TEST_CASE("Tensors follow each other in a slab at multiples of 256 bytes") {
  const SlabPlan plan = PlanSlabs(IndexOf({1, 256, 257, 4}), First(4), 7);
  REQUIRE(plan.slabs.size() == 1);
  CHECK(plan.slabs[0].number == 7);
  CHECK(plan.slabs[0].nbytes == 2 * kMiB);
  REQUIRE(plan.transfers.size() == 4);
  const std::vector<std::uint64_t> offsets = {0, 256, 512, 1024};
  std::uint64_t source_offset = plan.transfers[0].source_offset;
  for (std::uint32_t i = 0; i < 4; ++i) {
    CHECK(plan.transfers[i].tensor == i);
    CHECK(plan.transfers[i].slab == 7);
    CHECK(plan.transfers[i].slab_offset == offsets[i]);
    CHECK(plan.transfers[i].source_offset == source_offset);
    source_offset += plan.transfers[i].nbytes;
  }
}

TEST_CASE("Slabs are full at 256 MiB and multiples of 2 MiB") {
  const SlabPlan plan = PlanSlabs(IndexOf({200 * kMiB, 56 * kMiB, 1, 256 * kMiB}), First(4), 1);
  REQUIRE(plan.slabs.size() == 3);
  CHECK(plan.slabs[0].nbytes == 256 * kMiB);
  CHECK(plan.slabs[1].nbytes == 2 * kMiB);
  CHECK(plan.slabs[2].nbytes == 256 * kMiB);
  CHECK(plan.nbytes() == 514 * kMiB);
}

TEST_CASE("A tensor over 256 MiB has a slab of its own, and those around it share one") {
  const SlabPlan plan = PlanSlabs(IndexOf({100, 256 * kMiB + 1, 100}), First(3), 1);
  REQUIRE(plan.slabs.size() == 2);
  CHECK(plan.slabs[0].nbytes == 2 * kMiB);
  CHECK(plan.slabs[1].nbytes == 258 * kMiB);
  REQUIRE(plan.transfers.size() == 3);
  CHECK(plan.transfers[0].tensor == 0);
  CHECK(plan.transfers[1].tensor == 2);
  CHECK(plan.transfers[1].slab_offset == 256);
  CHECK(plan.transfers[2].tensor == 1);
  CHECK(plan.transfers[2].slab == 2);
}

TEST_CASE("Tensors without bytes take no place") {
  const SlabPlan plan = PlanSlabs(IndexOf({0, 0}), First(2), 1);
  CHECK(plan.slabs.empty());
  CHECK(plan.transfers.empty());
  CHECK(PlanSlabs(IndexOf({0, 3, 0}), First(3), 1).transfers.size() == 1);
}

}  // namespace safetensorfs

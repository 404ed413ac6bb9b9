#include "gpu/device/slab_plan.h"

#include <algorithm>
#include <optional>
#include <tuple>

namespace safetensorfs {
namespace {

std::uint64_t RoundUp(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

std::uint64_t SlabPlan::nbytes() const {
  std::uint64_t nbytes = 0;
  for (const SlabSize& slab : slabs) nbytes += slab.nbytes;
  return nbytes;
}

SlabPlan PlanSlabs(const TensorIndex& index, std::span<const std::uint32_t> tensors,
                   std::uint64_t first_slab) {
  SlabPlan plan;
  plan.transfers.reserve(tensors.size());
  const auto add_slab = [&] {
    plan.slabs.push_back({first_slab + plan.slabs.size(), 0});
    return plan.slabs.size() - 1;
  };
  std::optional<std::size_t> shared;  // the slab that small tensors go to
  for (const std::uint32_t tensor : tensors) {
    const TensorIndex::Entry& entry = index[tensor];
    if (entry.nbytes == 0) continue;
    std::size_t at;
    if (entry.nbytes > kMaxSharedSlab) {
      at = add_slab();
    } else {
      if (!shared ||
          RoundUp(plan.slabs[*shared].nbytes, kTensorAlignment) + entry.nbytes > kMaxSharedSlab) {
        shared = add_slab();
      }
      at = *shared;
    }
    SlabSize& slab = plan.slabs[at];
    const std::uint64_t offset = RoundUp(slab.nbytes, kTensorAlignment);
    plan.transfers.push_back(
        {slab.number, offset, entry.offset, entry.nbytes, entry.source, tensor});
    slab.nbytes = offset + entry.nbytes;
  }
  for (SlabSize& slab : plan.slabs) slab.nbytes = RoundUp(slab.nbytes, kSlabGranularity);
  SortBySlab(plan.transfers);  // a large tensor came between tensors that share a slab
  return plan;
}

void SortBySlab(std::vector<Transfer>& transfers) {
  const auto place = [](const Transfer& transfer) {
    return std::tuple(transfer.slab, transfer.slab_offset);
  };
  // As most plans are.
  if (std::ranges::is_sorted(transfers, {}, place)) return;
  std::ranges::sort(transfers, {}, place);
}

}  // namespace safetensorfs

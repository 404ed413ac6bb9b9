#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/format/tensor_index.h"
#include "gpu/process/transfer.h"

namespace safetensorfs {

/// Which slabs to allocate and where in them tensors go.
struct SlabPlan {
  std::vector<SlabSize> slabs;
  std::vector<Transfer> transfers;  // by slab, then by offset; `source` is TensorIndex's number

  /// Bytes of all slabs.
  std::uint64_t nbytes() const;
};

/// A slab is a multiple of this: CUDA IPC shares whole blocks of it, with the neighbours that
/// smaller allocations would have.
inline constexpr std::uint64_t kSlabGranularity = std::uint64_t{2} << 20;
/// A larger tensor has a slab of its own.
inline constexpr std::uint64_t kMaxSharedSlab = std::uint64_t{256} << 20;

/// Packs tensors, in the order given, which should be that of the file, into slabs numbered from
/// `first_slab`. Empty tensors go nowhere.
SlabPlan PlanSlabs(const TensorIndex& index, std::span<const std::uint32_t> tensors,
                   std::uint64_t first_slab);

/// Orders transfers by slab, then by offset.
void SortBySlab(std::vector<Transfer>& transfers);

}  // namespace safetensorfs

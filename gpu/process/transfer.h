#pragma once

#include <cstdint>

namespace safetensorfs {

/// What cuMemAlloc aligns to, and so the offset of any tensor in its slab.
inline constexpr std::uint64_t kTensorAlignment = 256;

/// A slab to allocate. Sizes in bytes.
struct SlabSize {
  std::uint64_t number;
  std::uint64_t nbytes;
};

/// A tensor's way from its source into a slab. Offsets and sizes in bytes.
struct Transfer {
  std::uint64_t slab;
  std::uint64_t slab_offset;
  std::uint64_t source_offset;
  std::uint64_t nbytes;
  std::uint32_t source;  // number of the file among those sent with the job
  std::uint32_t tensor;
};

}  // namespace safetensorfs

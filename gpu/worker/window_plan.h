#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/process/transfer.h"

namespace safetensorfs {

/// A range of a slab that is copied at once, and the transfers that lie in it, in part or whole.
/// Small tensors lie in the host's copy of a window as they lie in the slab, so that a thousand of
/// them cost one copy.
struct Window {
  std::uint64_t slab;
  std::uint64_t begin;  // bytes from the start of the slab
  std::uint64_t end;
  std::size_t first;  // transfers first to last-1
  std::size_t last;
};

/// A part of a transfer that lies in a window.
struct WindowPart {
  std::uint32_t source;
  std::uint32_t tensor;
  std::uint64_t source_offset;
  std::uint64_t window_offset;  // bytes from the start of the window
  std::uint64_t nbytes;
};

/// Cuts transfers, which are ordered by slab and offset, into windows of at most `limit` bytes.
/// Between neighbours of a window lie gaps of less than `max_gap` bytes, which are copied too.
std::vector<Window> PlanWindows(std::span<const Transfer> transfers, std::uint64_t limit,
                                std::uint64_t max_gap);

/// What of a transfer lies in a window.
WindowPart PartOf(const Window& window, const Transfer& transfer);

}  // namespace safetensorfs

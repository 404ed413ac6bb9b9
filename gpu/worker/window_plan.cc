#include "gpu/worker/window_plan.h"

#include <algorithm>

namespace safetensorfs {

std::vector<Window> PlanWindows(std::span<const Transfer> transfers, std::uint64_t limit,
                                std::uint64_t max_gap) {
  std::vector<Window> windows;
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    const Transfer& transfer = transfers[i];
    std::uint64_t at = transfer.slab_offset;
    const std::uint64_t end = transfer.slab_offset + transfer.nbytes;
    if (!windows.empty()) {
      Window& window = windows.back();
      // What does not fit a window begins a new one, unless it has to be cut anyway.
      const bool fits = end - window.begin <= limit || transfer.nbytes > limit;
      if (window.slab == transfer.slab && at - window.end < max_gap && at < window.begin + limit &&
          fits) {
        window.last = i + 1;
        window.end = std::min(end, window.begin + limit);
        at = window.end;
      }
    }
    for (; at < end; at = windows.back().end) {
      windows.push_back({transfer.slab, at, std::min(end, at + limit), i, i + 1});
    }
  }
  return windows;
}

WindowPart PartOf(const Window& window, const Transfer& transfer) {
  const std::uint64_t begin = std::max(window.begin, transfer.slab_offset);
  const std::uint64_t end = std::min(window.end, transfer.slab_offset + transfer.nbytes);
  return {transfer.source, transfer.tensor, transfer.source_offset + (begin - transfer.slab_offset),
          begin - window.begin, end - begin};
}

}  // namespace safetensorfs

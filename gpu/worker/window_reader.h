#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "gpu/worker/source_reader.h"
#include "gpu/worker/window_plan.h"

namespace safetensorfs {

/// Reads windows from sources into host memory, as they are to lie in the slab. For one thread.
class WindowReader {
 public:
  /// What a slot needs beyond the window's own bytes.
  static constexpr std::uint64_t kMargin = 128 << 10;

  /// Both must outlive it; transfers name the sources by their numbers.
  WindowReader(std::span<const Transfer> transfers, std::span<const SourceReader> sources)
      : transfers_(transfers), sources_(sources) {}

  /// Returns where in the page-aligned `slot` the window begins. Throws Error (EIO).
  std::byte* Read(const Window& window, std::span<std::byte> slot);

 private:
  // Parts that follow each other in one source.
  struct Run {
    std::uint32_t source;
    std::uint64_t begin;  // bytes from the start of the source
    std::uint64_t end;
  };

  std::byte* ReadSinglePart(const WindowPart& part, std::span<std::byte> slot);
  void ReadRun(const Run& run);
  bool ReadRunPastCache(const Run& run);

  std::span<const Transfer> transfers_;
  std::span<const SourceReader> sources_;
  std::vector<iovec> parts_;  // of the run
  struct FreeMemory {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, FreeMemory> bounce_;  // for what cannot be read to its place
  std::size_t bounce_size_ = 0;
};

}  // namespace safetensorfs

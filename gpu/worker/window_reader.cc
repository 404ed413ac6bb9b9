#include "gpu/worker/window_reader.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "core/base/error.h"
#include "core/base/text.h"

namespace safetensorfs {
namespace {

struct AlignedRange {
  std::uint64_t begin;
  std::uint64_t end;
};

AlignedRange Widen(std::uint64_t begin, std::uint64_t end, std::uint64_t alignment) {
  return {begin / alignment * alignment, (end + alignment - 1) / alignment * alignment};
}

// Also a multiple of all alignments for O_DIRECT. A disk takes a limited number of pieces of memory
// at once, so that reading into small pages makes many small requests.
constexpr std::size_t kHugePage = 2 << 20;

}  // namespace

void WindowReader::FreeMemory::operator()(std::byte* memory) const { std::free(memory); }

std::byte* WindowReader::Read(const Window& window, std::span<std::byte> slot) {
  if (window.last - window.first == 1) {
    return ReadSinglePart(PartOf(window, transfers_[window.first]), slot);
  }
  Run run = {};
  for (std::size_t i = window.first; i < window.last; ++i) {
    const WindowPart part = PartOf(window, transfers_[i]);
    if (!parts_.empty() && (part.source != run.source || part.source_offset != run.end)) {
      ReadRun(run);
    }
    if (parts_.empty()) run = {part.source, part.source_offset, part.source_offset};
    std::byte* const to = slot.data() + part.window_offset;
    // Without padding between them they are one.
    if (!parts_.empty() &&
        static_cast<std::byte*>(parts_.back().iov_base) + parts_.back().iov_len == to) {
      parts_.back().iov_len += part.nbytes;
    } else {
      parts_.push_back({to, part.nbytes});
    }
    run.end += part.nbytes;
  }
  ReadRun(run);
  return slot.data();
}

std::byte* WindowReader::ReadSinglePart(const WindowPart& part, std::span<std::byte> slot) {
  const SourceReader& source = sources_[part.source];
  if (source.PrefersBypass(part.source_offset, part.nbytes)) {
    const std::uint64_t end = part.source_offset + part.nbytes;
    const AlignedRange wide = Widen(part.source_offset, end, source.alignment());
    const std::uint64_t n = source.ReadPastCache(slot.data(), wide.end - wide.begin, wide.begin);
    if (wide.begin + n >= end) return slot.data() + (part.source_offset - wide.begin);
  }
  iovec whole = {slot.data(), part.nbytes};
  source.Read({&whole, 1}, part.source_offset);
  return slot.data();
}

void WindowReader::ReadRun(const Run& run) {
  const SourceReader& source = sources_[run.source];
  if (!source.PrefersBypass(run.begin, run.end - run.begin) || !ReadRunPastCache(run)) {
    source.Read(parts_, run.begin);
  }
  parts_.clear();
}

bool WindowReader::ReadRunPastCache(const Run& run) {
  const SourceReader& source = sources_[run.source];
  const AlignedRange wide = Widen(run.begin, run.end, source.alignment());
  const std::size_t size = wide.end - wide.begin;
  if (size > bounce_size_) {
    const std::size_t rounded = (size + kHugePage - 1) / kHugePage * kHugePage;
    bounce_.reset(static_cast<std::byte*>(std::aligned_alloc(kHugePage, rounded)));
    bounce_size_ = bounce_ ? rounded : 0;
    if (!bounce_) throw Error(ENOMEM, "cannot allocate " + ByteCount(size) + " to read into");
    madvise(bounce_.get(), bounce_size_, MADV_HUGEPAGE);
  }
  if (wide.begin + source.ReadPastCache(bounce_.get(), size, wide.begin) < run.end) return false;
  const std::byte* from = bounce_.get() + (run.begin - wide.begin);
  for (const iovec& part : parts_) {
    std::memcpy(part.iov_base, from, part.iov_len);
    from += part.iov_len;
  }
  return true;
}

}  // namespace safetensorfs

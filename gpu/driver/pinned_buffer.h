#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "gpu/driver/driver.h"

namespace safetensorfs {

/// Host memory that the GPU copies from and to at full speed, page-aligned: huge pages registered
/// with the driver; failing that, what the driver allocates; failing that (confidential computing
/// forbids both), ordinary memory, from which copies work but are slow. Made in the thread that
/// will use it, so that its pages lie near that thread.
class PinnedBuffer {
 public:
  enum class Kind { kRegistered, kAllocated, kPageable };

  /// Prefers memory of NUMA node `node`; a negative number has no preference. Throws Error
  /// (ENOMEM).
  PinnedBuffer(const Driver& driver, std::size_t nbytes, int node);
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  ~PinnedBuffer();

  std::byte* data() const { return bytes_.data(); }
  std::size_t size() const { return bytes_.size(); }
  Kind kind() const { return kind_; }

 private:
  void Unmap();

  const Driver& driver_;
  std::span<std::byte> bytes_;
  Kind kind_ = Kind::kRegistered;
};

/// The NUMA node of a PCI device such as "0000:01:00.0"; -1 where there is none.
int NumaNodeOf(const std::string& pci_bus);

}  // namespace safetensorfs

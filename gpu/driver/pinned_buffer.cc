#include "gpu/driver/pinned_buffer.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <fstream>

#include "core/base/text.h"

namespace safetensorfs {
namespace {

constexpr std::size_t kPage = 4096;

// The call itself: libnuma would be a dependency for one line.
void PreferNode(std::span<std::byte> bytes, int node) {
  if (node < 0 || node >= 64) return;
  const unsigned long mask = 1ul << node;
  syscall(SYS_mbind, bytes.data(), bytes.size(), MPOL_PREFERRED, &mask, 65ul, 0u);
}

std::span<std::byte> Map(std::size_t nbytes, int node) {
  void* const address =
      mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED)
    throw Error(ENOMEM, "cannot map " + ByteCount(nbytes) + " of staging memory");
  madvise(address, nbytes, MADV_HUGEPAGE);
  const std::span bytes(static_cast<std::byte*>(address), nbytes);
  PreferNode(bytes, node);
  // Touched before it is registered, which would do it in one thread and page by page.
  for (std::size_t at = 0; at < nbytes; at += kPage) bytes[at] = std::byte{0};
  return bytes;
}

}  // namespace

PinnedBuffer::PinnedBuffer(const Driver& driver, std::size_t nbytes, int node)
    : driver_(driver), bytes_(Map(nbytes, node)) {
  if (driver_.mem_host_register.Try(bytes_.data(), nbytes, 0) == CUDA_SUCCESS) return;
  void* address = nullptr;
  // Never write-combined: verifying reads it.
  if (driver_.mem_host_alloc.Try(&address, nbytes, 0) != CUDA_SUCCESS) {
    kind_ = Kind::kPageable;
    return;
  }
  Unmap();
  kind_ = Kind::kAllocated;
  bytes_ = {static_cast<std::byte*>(address), nbytes};
}

PinnedBuffer::~PinnedBuffer() {
  if (kind_ == Kind::kAllocated) {
    driver_.mem_free_host.Try(bytes_.data());
    return;
  }
  if (kind_ == Kind::kRegistered) driver_.mem_host_unregister.Try(bytes_.data());
  Unmap();
}

void PinnedBuffer::Unmap() { munmap(bytes_.data(), bytes_.size()); }

int NumaNodeOf(const std::string& pci_bus) {
  std::string name = pci_bus;
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  int node = -1;
  std::ifstream("/sys/bus/pci/devices/" + name + "/numa_node") >> node;
  return node;
}

}  // namespace safetensorfs

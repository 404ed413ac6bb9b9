#include "core/base/mapping.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

namespace safetensorfs {

Mapping::Mapping(int fd, std::uint64_t size) {
  if (size == 0) return;
  void* address = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) {
    error_ = errno;
    return;
  }
  bytes_ = {static_cast<const std::byte*>(address), size};
}

Mapping::Mapping(Mapping&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})), error_(other.error_) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(error_, other.error_);
  return *this;
}

Mapping::~Mapping() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace safetensorfs

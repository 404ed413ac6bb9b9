#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <string>

namespace simulated_cuda {

namespace {

struct Leftover {
  std::byte* data;
  int descriptor;
  uint64_t id;
};

// By size. Never destroyed: threads of the driver run until the process ends.
struct Leftovers {
  std::mutex mutex;
  std::multimap<size_t, Leftover> by_size;
};

Leftovers& AllLeftovers() {
  static auto* leftovers = new Leftovers;
  return *leftovers;
}

}  // namespace

std::shared_ptr<DeviceBuffer> DeviceBuffer::Create(size_t bytes, bool reuse) {
  if (reuse) {
    Leftovers& leftovers = AllLeftovers();
    std::lock_guard guard(leftovers.mutex);
    auto found = leftovers.by_size.find(bytes);
    if (found != leftovers.by_size.end()) {
      std::shared_ptr<DeviceBuffer> buffer(new DeviceBuffer);
      buffer->is_reused_ = true;
      buffer->data_ = found->second.data;
      buffer->bytes_ = bytes;
      buffer->descriptor_ = found->second.descriptor;
      buffer->id_ = found->second.id;
      leftovers.by_size.erase(found);
      return buffer;
    }
  }
  static std::atomic<uint64_t> next_id = 1;
  uint64_t id = next_id++;
  // Importers compare the name with what the handle says, so that a descriptor's number which
  // something else has by now is noticed.
  std::string name = "simulated_cuda_" + std::to_string(id);
  int descriptor = memfd_create(name.c_str(), MFD_CLOEXEC);
  if (descriptor < 0) throw std::bad_alloc();
  if (ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
    close(descriptor);
    throw std::bad_alloc();
  }
  std::shared_ptr<DeviceBuffer> buffer = Open(descriptor, bytes);
  if (buffer == nullptr) throw std::bad_alloc();
  buffer->id_ = id;
  buffer->is_reused_ = reuse;
  return buffer;
}

std::shared_ptr<DeviceBuffer> DeviceBuffer::Open(int descriptor, size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED) {
    close(descriptor);
    return nullptr;
  }
  madvise(data, bytes, MADV_HUGEPAGE);  // fewer faults, where the kernel has it for memfds
  std::shared_ptr<DeviceBuffer> buffer(new DeviceBuffer);
  buffer->data_ = static_cast<std::byte*>(data);
  buffer->bytes_ = bytes;
  buffer->descriptor_ = descriptor;
  return buffer;
}

DeviceBuffer::~DeviceBuffer() {
  if (is_reused_) {
    Leftovers& leftovers = AllLeftovers();
    std::lock_guard guard(leftovers.mutex);
    leftovers.by_size.emplace(bytes_, Leftover{data_, descriptor_, id_});
    return;
  }
  munmap(data_, bytes_);
  close(descriptor_);
}

void DeviceBuffer::Fill(uint8_t value) { std::memset(data_, value, bytes_); }

}  // namespace simulated_cuda

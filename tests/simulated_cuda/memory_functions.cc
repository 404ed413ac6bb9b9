// Exports: device memory, pinned host memory and copies.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "call.h"

namespace simulated_cuda {
namespace {

bool IsMapped(uintptr_t address, size_t bytes) {
  uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  uintptr_t begin = address / page * page;
  return msync(reinterpret_cast<void*>(begin), address + bytes - begin, MS_ASYNC) == 0;
}

std::shared_ptr<HostRange> MakeHostRange(Context& context, void* address, size_t bytes,
                                         bool allocated) {
  // Not make_shared, which would move the atomic member.
  return std::shared_ptr<HostRange>(new HostRange{.address = reinterpret_cast<uintptr_t>(address),
                                                  .bytes = bytes,
                                                  .allocated = allocated,
                                                  .context = &context});
}

CUresult RemoveHostRange(Driver& driver, void* address, bool allocated, CUresult unknown) {
  std::shared_ptr<HostRange> range = driver.host_memory.Remove(
      reinterpret_cast<uintptr_t>(address),
      [&](const HostRange& other) { return other.allocated == allocated; });
  if (range == nullptr) return unknown;
  range->context->EndHostRange(*range);
  return ResultOfWork(driver);
}

// The copy with what it touches; nothing where the device does not have the bytes, which poisons
// the process as an access by the device would.
std::optional<Copy> Prepare(Driver& driver, Direction direction, void* to, const void* from,
                            size_t bytes) {
  bool to_device = direction == Direction::kHostToDevice;
  auto device_address = reinterpret_cast<uintptr_t>(to_device ? to : from);
  auto host_address = reinterpret_cast<uintptr_t>(to_device ? from : to);
  std::shared_ptr<DeviceBuffer> buffer = driver.memory.Find(device_address, bytes);
  if (buffer == nullptr) {
    driver.state().Add(Counter::kCopiesOutsideMemory);
    driver.Poison();
    return std::nullopt;
  }
  ++buffer->copies;
  // The first byte decides whether memory counts as pinned.
  std::shared_ptr<HostRange> host = driver.host_memory.Find(host_address, 1);
  if (host != nullptr) ++host->copies;
  return Copy{.direction = direction,
              .to = to,
              .from = from,
              .bytes = bytes,
              .device = std::move(buffer),
              .host = std::move(host)};
}

CUresult CopyNow(Driver& driver, Context& context, Direction direction, void* to, const void* from,
                 size_t bytes) {
  if (bytes == 0) return CUDA_SUCCESS;
  context.null_queue().WaitForAll();
  std::optional<Copy> copy = Prepare(driver, direction, to, from, bytes);
  if (copy) context.engine().Execute(*copy);
  return ResultOfWork(driver);
}

CUresult CopyLater(Driver& driver, Context& context, Direction direction, void* to,
                   const void* from, size_t bytes, CUstream handle) {
  Queue* queue = FindQueue(driver, context, handle);
  if (queue == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (bytes == 0) return CUDA_SUCCESS;
  std::optional<Copy> copy = Prepare(driver, direction, to, from, bytes);
  if (!copy) return CUDA_ERROR_ILLEGAL_ADDRESS;
  if (copy->host == nullptr) {
    // The device reaches pinned memory only: the driver has to pass the bytes on by itself.
    driver.state().Add(Counter::kPageableCopies);
    queue->WaitForAll();
    context.engine().Execute(*copy);
    return ResultOfWork(driver);
  }
  copy->not_before = driver.NextCopyTime();
  queue->Issue(std::move(*copy));
  return CUDA_SUCCESS;
}

void* Pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

}  // namespace

SIMULATED_CUDA_EXPORT CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  return InContext("cuMemGetInfo_v2", [&](Driver& driver, Context& context) {
    if (free == nullptr || total == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const DeviceSettings& settings = driver.settings(context.device());
    *free = driver.state().FreeBytes(context.device(), settings);
    *total = settings.memory;
    return CUDA_SUCCESS;
  });
}

SIMULATED_CUDA_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  return InContext("cuMemAlloc_v2", [&](Driver&, Context& context) {
    if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return context.Allocate(bytes, address);
  });
}

SIMULATED_CUDA_EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
  return InContext("cuMemFree_v2", [&](Driver& driver, Context&) {
    if (address == 0) return CUDA_SUCCESS;
    std::shared_ptr<DeviceBuffer> buffer = driver.memory.Remove(
        address, [](const DeviceBuffer& other) { return other.import == nullptr; });
    if (buffer == nullptr) return CUDA_ERROR_INVALID_VALUE;
    buffer->context->Free(*buffer);
    return ResultOfWork(driver);
  });
}

SIMULATED_CUDA_EXPORT CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned int flags) {
  return InContext("cuMemHostAlloc", [&](Driver& driver, Context& context) {
    if (address == nullptr || bytes == 0 || flags > 7) return CUDA_ERROR_INVALID_VALUE;
    if (!driver.configuration().host_alloc) return CUDA_ERROR_OUT_OF_MEMORY;
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    driver.host_memory.Insert(reinterpret_cast<uintptr_t>(memory), bytes,
                              MakeHostRange(context, memory, bytes, true));
    driver.state().Pin(bytes);
    *address = memory;
    return CUDA_SUCCESS;
  });
}

SIMULATED_CUDA_EXPORT CUresult cuMemFreeHost(void* address) {
  return InContext("cuMemFreeHost", [&](Driver& driver, Context&) {
    return RemoveHostRange(driver, address, true, CUDA_ERROR_INVALID_VALUE);
  });
}

SIMULATED_CUDA_EXPORT CUresult cuMemHostRegister_v2(void* address, size_t bytes,
                                                    unsigned int flags) {
  return InContext("cuMemHostRegister_v2", [&](Driver& driver, Context& context) {
    if (!driver.configuration().register_host) return CUDA_ERROR_NOT_SUPPORTED;
    auto begin = reinterpret_cast<uintptr_t>(address);
    if (address == nullptr || bytes == 0 || flags > 15 || !IsMapped(begin, bytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (!driver.host_memory.Insert(begin, bytes, MakeHostRange(context, address, bytes, false))) {
      return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
    driver.state().Pin(bytes);
    return CUDA_SUCCESS;
  });
}

SIMULATED_CUDA_EXPORT CUresult cuMemHostUnregister(void* address) {
  return InContext("cuMemHostUnregister", [&](Driver& driver, Context&) {
    return RemoveHostRange(driver, address, false, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  });
}

SIMULATED_CUDA_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  return InContext("cuMemcpyHtoD_v2", [&](Driver& driver, Context& context) {
    return CopyNow(driver, context, Direction::kHostToDevice, Pointer(to), from, bytes);
  });
}

SIMULATED_CUDA_EXPORT CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  return InContext("cuMemcpyDtoH_v2", [&](Driver& driver, Context& context) {
    return CopyNow(driver, context, Direction::kDeviceToHost, to, Pointer(from), bytes);
  });
}

SIMULATED_CUDA_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes,
                                                    CUstream stream) {
  return InContext("cuMemcpyHtoDAsync_v2", [&](Driver& driver, Context& context) {
    return CopyLater(driver, context, Direction::kHostToDevice, Pointer(to), from, bytes, stream);
  });
}

SIMULATED_CUDA_EXPORT CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes,
                                                    CUstream stream) {
  return InContext("cuMemcpyDtoHAsync_v2", [&](Driver& driver, Context& context) {
    return CopyLater(driver, context, Direction::kDeviceToHost, to, Pointer(from), bytes, stream);
  });
}

}  // namespace simulated_cuda

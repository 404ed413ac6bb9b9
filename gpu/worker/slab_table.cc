#include "gpu/worker/slab_table.h"

#include <cerrno>
#include <cstring>

#include "core/base/error.h"
#include "core/base/text.h"

namespace safetensorfs {

static_assert(sizeof(IpcHandle) == CU_IPC_HANDLE_SIZE);

std::string SlabTable::DescribeMemory(std::uint64_t needed) const {
  std::size_t free = 0;
  std::size_t total = 0;
  driver_.mem_get_info(&free, &total);
  std::uint64_t held = 0;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, memory] : slabs_) held += memory->nbytes();
  }
  return "needs " + Grouped(needed) + " bytes of device memory, " + Grouped(free) + " of " +
         Grouped(total) + " are free, " + Grouped(held) + " are held by what is loaded here";
}

SlabTable::Slabs SlabTable::Allocate(std::span<const SlabSize> sizes) const {
  std::uint64_t needed = 0;
  for (const SlabSize& size : sizes) needed += size.nbytes;
  std::size_t free = 0;
  std::size_t total = 0;
  driver_.mem_get_info(&free, &total);
  // Without trying first, which would take from others what is given back a moment later.
  if (needed > free) throw Error(ENOMEM, DescribeMemory(needed));
  Slabs slabs;
  try {
    for (const SlabSize& size : sizes) {
      slabs.emplace(size.number, std::make_shared<const DeviceMemory>(driver_, size.nbytes));
    }
  } catch (const DriverError& error) {
    if (error.code() != ENOMEM) throw;
    slabs.clear();
    throw Error(ENOMEM, DescribeMemory(needed) + ", and it cannot be allocated: " + error.what());
  }
  return slabs;
}

void SlabTable::Add(Slabs slabs) {
  const std::lock_guard lock(mutex_);
  slabs_.merge(slabs);
}

void SlabTable::Free(std::span<const std::uint64_t> numbers) {
  std::vector<std::shared_ptr<const DeviceMemory>> freed;  // without the lock
  const std::lock_guard lock(mutex_);
  for (const std::uint64_t number : numbers) {
    if (auto slab = slabs_.extract(number)) freed.push_back(std::move(slab.mapped()));
  }
}

std::shared_ptr<const DeviceMemory> SlabTable::Find(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto at = slabs_.find(number);
  return at != slabs_.end() ? at->second : nullptr;
}

std::vector<IpcHandle> ExportSlabs(const Driver& driver, const SlabTable::Slabs& slabs,
                                   std::span<const SlabSize> sizes, std::string& reason) {
  std::vector<IpcHandle> handles;
  for (const SlabSize& size : sizes) {
    CUipcMemHandle handle;
    const CUresult result =
        driver.ipc_get_mem_handle.Try(&handle, slabs.at(size.number)->address());
    if (result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_NOT_PERMITTED) {
      reason = "CUDA shares no memory between processes here: cuIpcGetMemHandle: " +
               driver.TextOf(result);
      return {};
    }
    if (result != CUDA_SUCCESS) driver.ipc_get_mem_handle.Throw(result);
    std::memcpy(handles.emplace_back().data(), &handle, sizeof handle);
  }
  return handles;
}

}  // namespace safetensorfs

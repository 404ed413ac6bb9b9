#include "context.h"

#include <sys/mman.h>

#include <new>

#include "driver.h"

namespace simulated_cuda {
namespace {

constexpr size_t kGranularity = size_t{2} << 20;

}  // namespace

CUresult Context::Retain() {
  std::lock_guard guard(mutex_);
  if (retained_ == 0) {
    const DeviceSettings& settings = driver_.settings(device_);
    if (settings.compute_mode == CU_COMPUTEMODE_PROHIBITED) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    bool exclusive = settings.compute_mode == CU_COMPUTEMODE_EXCLUSIVE_PROCESS;
    switch (driver_.state().CreateContext(device_, settings, exclusive)) {
      case StateFile::ContextResult::kNoMemory:
        return CUDA_ERROR_OUT_OF_MEMORY;
      case StateFile::ContextResult::kOtherProcess:
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
      case StateFile::ContextResult::kCreated:
        break;
    }
    driver_.state().Add(Counter::kContextsCreated);
    null_queue_ = &NewQueue();
    active_ = true;
  }
  ++retained_;
  return CUDA_SUCCESS;
}

CUresult Context::Release() {
  std::lock_guard guard(mutex_);
  if (retained_ == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--retained_ == 0) DestroyEverything();
  return CUDA_SUCCESS;
}

void Context::DestroyEverything() {
  active_ = false;
  Synchronize();
  driver_.streams.RemoveAllOf(this);
  driver_.events.RemoveAllOf(this);
  auto is_ours = [&](const auto& range) { return range.context == this; };
  for (const auto& buffer : driver_.memory.Select(is_ours)) {
    driver_.memory.Remove(buffer->address(), is_ours);
    buffer->import == nullptr ? Free(*buffer) : CloseImport(*buffer);
  }
  for (const auto& range : driver_.host_memory.Select(is_ours)) {
    driver_.host_memory.Remove(range->address, is_ours);
    EndHostRange(*range);
  }
  {
    std::lock_guard guard(queues_mutex_);
    for (const auto& queue : queues_) queue->Close();
  }
  driver_.state().own().context[device_] = 0;
}

Queue& Context::null_queue() { return *null_queue_; }

Queue& Context::NewQueue() {
  std::lock_guard guard(queues_mutex_);
  queues_.push_back(std::make_unique<Queue>(engine_));
  return *queues_.back();
}

void Context::Synchronize() {
  std::vector<Queue*> queues;
  {
    std::lock_guard guard(queues_mutex_);
    for (const auto& queue : queues_) queues.push_back(queue.get());
  }
  for (Queue* queue : queues) queue->WaitForAll();
}

CUresult Context::Allocate(size_t bytes, CUdeviceptr* address) {
  const DeviceSettings& settings = driver_.settings(device_);
  StateFile& state = driver_.state();
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > settings.memory) return CUDA_ERROR_OUT_OF_MEMORY;
  uint64_t charged = (bytes + kGranularity - 1) / kGranularity * kGranularity;
  if (!state.Allocate(device_, settings, charged)) return CUDA_ERROR_OUT_OF_MEMORY;
  std::shared_ptr<DeviceBuffer> buffer;
  try {
    buffer = DeviceBuffer::Create(bytes, driver_.configuration().reuse);
  } catch (const std::bad_alloc&) {
    state.own().allocated[device_] -= charged;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  buffer->context = this;
  buffer->charged_bytes = charged;
  if (driver_.configuration().poison) buffer->Fill(0xA5);
  *address = buffer->address();
  driver_.memory.Insert(buffer->address(), bytes, buffer);
  state.Add(Counter::kAllocations);
  return CUDA_SUCCESS;
}

void Context::Free(DeviceBuffer& buffer) {
  StateFile& state = driver_.state();
  if (buffer.copies > 0) state.Add(Counter::kFreedWhileCopying);
  Synchronize();
  if (state.IsImported(buffer.id())) {
    state.Add(Counter::kFreedWhileImported);
    buffer.Fill(0xDD);  // the importer shall see that it has lost it
  }
  state.own().allocated[device_] -= buffer.charged_bytes;
  state.Add(Counter::kFrees);
}

void Context::CloseImport(DeviceBuffer& buffer) {
  StateFile& state = driver_.state();
  if (buffer.copies > 0) state.Add(Counter::kClosedWhileCopying);
  Synchronize();
  state.EndImport(buffer.import);
}

void Context::EndHostRange(HostRange& range) {
  StateFile& state = driver_.state();
  if (range.copies > 0) {
    state.Add(Counter::kHostFreedWhileCopying);
    Synchronize();
  }
  state.own().pinned -= range.bytes;
  if (range.allocated) munmap(reinterpret_cast<void*>(range.address), range.bytes);
}

}  // namespace simulated_cuda

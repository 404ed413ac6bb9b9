// Exports: streams and events.
#include "call.h"

namespace simulated_cuda {
namespace {

// Runs `body(driver, event)`.
template <typename Body>
CUresult OnEvent(Symbol symbol, CUevent handle, Body body) {
  return InContext(symbol, [&](Driver& driver, Context&) {
    Event* event = driver.events.Find(handle);
    return event == nullptr ? CUDA_ERROR_INVALID_HANDLE : body(driver, *event);
  });
}

struct Recorded {
  Queue* queue;
  uint64_t copies;
};

Recorded Read(Event& event) {
  std::lock_guard guard(event.mutex);
  return {event.queue, event.copies};
}

}  // namespace

SIMULATED_CUDA_EXPORT CUresult cuStreamCreate(CUstream* handle, unsigned int flags) {
  return InContext("cuStreamCreate", [&](Driver& driver, Context& context) {
    if (handle == nullptr || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    bool own = flags == CU_STREAM_NON_BLOCKING;
    Queue& queue = own ? context.NewQueue() : context.null_queue();
    Stream* stream = driver.streams.Insert(
        std::make_unique<Stream>(Stream{.context = &context, .queue = &queue, .owns_queue = own}));
    *handle = reinterpret_cast<CUstream>(stream);
    return CUDA_SUCCESS;
  });
}

// As in CUDA, what was issued still executes.
SIMULATED_CUDA_EXPORT CUresult cuStreamDestroy_v2(CUstream handle) {
  return InContext("cuStreamDestroy_v2", [&](Driver& driver, Context&) {
    Stream* stream = driver.streams.Find(handle);
    if (stream == nullptr || !driver.streams.Remove(stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (!stream->owns_queue) return CUDA_SUCCESS;
    if (!stream->queue->Reached(stream->queue->issued())) {
      driver.state().Add(Counter::kStreamsDestroyedInUse);
    }
    stream->queue->Close();
    return CUDA_SUCCESS;
  });
}

SIMULATED_CUDA_EXPORT CUresult cuStreamSynchronize(CUstream handle) {
  return InContext("cuStreamSynchronize", [&](Driver& driver, Context& context) {
    Queue* queue = FindQueue(driver, context, handle);
    if (queue == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    queue->WaitForAll();
    return ResultOfWork(driver);
  });
}

SIMULATED_CUDA_EXPORT CUresult cuEventCreate(CUevent* handle, unsigned int flags) {
  return InContext("cuEventCreate", [&](Driver& driver, Context& context) {
    bool shared = (flags & CU_EVENT_INTERPROCESS) != 0;
    bool timed = (flags & CU_EVENT_DISABLE_TIMING) == 0;
    if (handle == nullptr || flags > 7 || (shared && timed)) return CUDA_ERROR_INVALID_VALUE;
    auto event = std::make_unique<Event>();
    event->context = &context;
    *handle = reinterpret_cast<CUevent>(driver.events.Insert(std::move(event)));
    return CUDA_SUCCESS;
  });
}

SIMULATED_CUDA_EXPORT CUresult cuEventDestroy_v2(CUevent handle) {
  return OnEvent("cuEventDestroy_v2", handle, [](Driver& driver, Event& event) {
    return driver.events.Remove(&event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  });
}

SIMULATED_CUDA_EXPORT CUresult cuEventRecord(CUevent handle, CUstream stream) {
  return OnEvent("cuEventRecord", handle, [&](Driver& driver, Event& event) {
    Context& context = *Driver::CurrentContext();
    Queue* queue = FindQueue(driver, context, stream);
    if (queue == nullptr || event.context != &context) return CUDA_ERROR_INVALID_HANDLE;
    uint64_t copies = queue->issued();
    std::lock_guard guard(event.mutex);
    event.queue = queue;
    event.copies = copies;
    return CUDA_SUCCESS;
  });
}

SIMULATED_CUDA_EXPORT CUresult cuEventQuery(CUevent handle) {
  return OnEvent("cuEventQuery", handle, [](Driver& driver, Event& event) {
    Recorded recorded = Read(event);
    bool reached = recorded.queue == nullptr || recorded.queue->Reached(recorded.copies);
    return reached ? ResultOfWork(driver) : CUDA_ERROR_NOT_READY;
  });
}

SIMULATED_CUDA_EXPORT CUresult cuEventSynchronize(CUevent handle) {
  return OnEvent("cuEventSynchronize", handle, [](Driver& driver, Event& event) {
    Recorded recorded = Read(event);
    if (recorded.queue != nullptr) recorded.queue->Wait(recorded.copies);
    return ResultOfWork(driver);
  });
}

}  // namespace simulated_cuda

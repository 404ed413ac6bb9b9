#include "call.h"

#include <signal.h>
#include <unistd.h>

#include <string>

#include "configuration.h"
#include "stop.h"

namespace simulated_cuda {
namespace {

CUresult State(const Driver& driver, Needs needs) {
  if (driver.forked()) return CUDA_ERROR_NOT_INITIALIZED;
  if (needs == Needs::kNothing) return CUDA_SUCCESS;
  if (!driver.initialized()) return CUDA_ERROR_NOT_INITIALIZED;
  if (needs == Needs::kContext) {
    const Context* context = Driver::CurrentContext();
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->active()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  if (needs != Needs::kDriver && driver.poisoned()) return CUDA_ERROR_ILLEGAL_ADDRESS;
  return CUDA_SUCCESS;
}

CUresult Happen(Driver& driver, const Fault& fault) {
  driver.state().Add(Counter::kInjectedFaults);
  switch (fault.kind) {
    case Fault::Kind::kFail:
      return static_cast<CUresult>(fault.code);
    case Fault::Kind::kSticky:
      if (driver.initialized()) driver.Poison();
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    case Fault::Kind::kCrash:
      kill(getpid(), fault.code);
      [[fallthrough]];
    case Fault::Kind::kHang:
      for (;;) pause();
  }
  return CUDA_SUCCESS;
}

}  // namespace

void StopAtOtherAbi(const char* name) {
  Driver& driver = Driver::Get();
  if (driver.has_simulation()) driver.state().Add(Counter::kOldAbiCalls);
  Stop(std::string(name) + " was called, which is not the ABI to call");
}

Queue* FindQueue(Driver& driver, Context& context, CUstream handle) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    return &context.null_queue();
  }
  Stream* stream = driver.streams.Find(handle);
  return stream != nullptr && stream->context == &context ? stream->queue : nullptr;
}

CUresult Admit(Symbol symbol, Needs needs) {
  Driver& driver = Driver::Get();
  if (!driver.has_simulation()) {
    return needs == Needs::kNothing ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
  }
  driver.state().CountCall(symbol);
  CUresult result = State(driver, needs);
  if (result != CUDA_SUCCESS) return result;
  symbol.frequent() ? driver.RefreshConfigurationNowAndThen() : driver.RefreshConfiguration();
  for (const auto& fault : driver.configuration().faults) {
    if (fault->symbol && *fault->symbol != symbol.index()) continue;
    uint64_t call = ++fault->calls;
    if (call < fault->first || (fault->once && call > fault->first)) continue;
    return Happen(driver, *fault);
  }
  return CUDA_SUCCESS;
}

}  // namespace simulated_cuda

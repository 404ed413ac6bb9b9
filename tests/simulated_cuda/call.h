#ifndef SAFETENSORFS_TESTS_SIMULATED_CUDA_CALL_H_
#define SAFETENSORFS_TESTS_SIMULATED_CUDA_CALL_H_

#include "driver.h"
#include "driver_api.h"
#include "symbol.h"

namespace simulated_cuda {

enum class Needs {
  kNothing,        // works in a process without cuInit
  kDriver,         // cuInit
  kHealthyDriver,  // and no sticky error
  kContext,        // and a current context
};

// What every function does first: counts the call, looks at the configuration, refuses it where
// the process or the thread is in no state for it, and has the faults that a test asked for.
CUresult Admit(Symbol symbol, Needs needs);

// Runs `body(driver)`; no exception reaches the C caller.
template <typename Body>
CUresult InDriver(Symbol symbol, Needs needs, Body body) noexcept {
  try {
    CUresult result = Admit(symbol, needs);
    return result == CUDA_SUCCESS ? body(Driver::Get()) : result;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

// Runs `body(driver, context)` with the calling thread's context.
template <typename Body>
CUresult InContext(Symbol symbol, Body body) noexcept {
  return InDriver(symbol, Needs::kContext,
                  [&](Driver& driver) { return body(driver, *Driver::CurrentContext()); });
}

// The stream's queue; null where the handle is no stream of that context. The null stream and the
// two names of default streams share one.
Queue* FindQueue(Driver& driver, Context& context, CUstream handle);

// What a call returns that has waited, or may have met an error of earlier copies.
inline CUresult ResultOfWork(const Driver& driver) {
  return driver.poisoned() ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}

}  // namespace simulated_cuda

#endif  // SAFETENSORFS_TESTS_SIMULATED_CUDA_CALL_H_

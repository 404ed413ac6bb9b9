#ifndef SAFETENSORFS_TESTS_SIMULATED_CUDA_STOP_H_
#define SAFETENSORFS_TESTS_SIMULATED_CUDA_STOP_H_

#include <string_view>

namespace simulated_cuda {

// Writes a line to stderr and aborts: for what is wrong with a test, or with the code under test
// in a way that no return code may hide.
[[noreturn]] void Stop(std::string_view message);

// The same for a call of a name in old_functions.cc, which is counted first.
[[noreturn]] void StopAtOtherAbi(const char* name);

}  // namespace simulated_cuda

#endif  // SAFETENSORFS_TESTS_SIMULATED_CUDA_STOP_H_

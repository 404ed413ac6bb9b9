#pragma once

#include <cstddef>
#include <functional>

namespace safetensorfs {

/// Calls `work(0)` to `work(count-1)`, several at once in threads of its own, and returns when all
/// are done. An exception of one of them is thrown again here, after the rest have ended.
void ParallelFor(std::size_t count, const std::function<void(std::size_t)>& work);

}  // namespace safetensorfs

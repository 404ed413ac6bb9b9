#pragma once

#include <cstddef>
#include <functional>

namespace safetensorfs {

/// Calls `work(0)` to `work(count-1)`, several at once in threads of its own, and returns when all
/// are done. After an exception no further call begins; it is thrown again here once those that
/// have begun are done.
void ParallelFor(std::size_t count, const std::function<void(std::size_t)>& work);

}  // namespace safetensorfs

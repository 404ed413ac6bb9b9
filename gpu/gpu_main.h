#pragma once

#include <optional>

namespace safetensorfs {

/// What a program with cuda devices does first in main(): where it was started as one of their
/// processes (GpuProcess), it is that, and this returns its exit status; else nothing.
std::optional<int> RunGpuProcess(int argc, char** argv);

}  // namespace safetensorfs

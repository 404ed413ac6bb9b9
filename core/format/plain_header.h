#pragma once

#include <cstdint>

#include "core/format/header.h"
#include "core/format/source_file.h"

namespace safetensorfs {

/// Reads the JSON of a header, `size` bytes at `offset`, where it is spelled as programs spell it:
/// printable ASCII without escapes, whole numbers, the three fields of a tensor and no others.
/// False, with `header` in any state, for everything else, right or wrong: ReadHeaderJson knows
/// which. What it takes, that takes as well, and makes the same of it, ten times as slowly. Throws
/// Error where the file cannot be read.
bool ReadPlainHeader(const SourceFile& source, std::uint64_t offset, std::uint64_t size,
                     Header& header);

}  // namespace safetensorfs

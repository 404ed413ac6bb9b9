#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/format/dtype.h"

namespace safetensorfs {

/// The header of a .npy file (NumPy's format 1.0, or 2.0 where it is over 65,535 bytes) for a
/// C-ordered array of `dtype` and `shape`; padded so that the data begin at a multiple of 64 bytes.
/// Sub-byte dtypes become `nbytes` packed bytes.
std::string NpyHeader(Dtype dtype, std::span<const std::uint64_t> shape, std::uint64_t nbytes);

/// Its size in bytes, without making it.
std::uint64_t NpyHeaderSize(Dtype dtype, std::span<const std::uint64_t> shape,
                            std::uint64_t nbytes);

}  // namespace safetensorfs

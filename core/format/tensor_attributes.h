#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/format/checkpoint.h"

namespace safetensorfs {

/// The extended attributes of a tensor file and of its .npy.
inline constexpr std::array<std::string_view, 6> kTensorAttributes = {
    "user.safetensors.name",   "user.safetensors.dtype",  "user.safetensors.shape",
    "user.safetensors.nbytes", "user.safetensors.source", "user.safetensors.offset"};

/// The longest value that the kernel passes on (XATTR_SIZE_MAX), in bytes.
inline constexpr std::size_t kMaxAttributeSize = 65536;

/// The value of an attribute; nothing where there is none of that name, or it is longer than the
/// kernel passes on (then it is in .index.json only).
std::optional<std::string> TensorAttribute(const Checkpoint& checkpoint, std::uint32_t tensor,
                                           std::string_view attribute);

}  // namespace safetensorfs

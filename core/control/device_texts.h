#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/device/device.h"
#include "core/device/loaded_tensors.h"

namespace safetensorfs {

/// What the files below `.devices/<device>` say, as JSON on one line.

/// `handles/<tensor>`: how to attach to a loaded tensor.
std::string HandleText(const Device& device, const Checkpoint& checkpoint,
                       const LoadedTensors::Instance& instance);

/// `slabs/<number>`: how to attach to a slab, and where in it its tensors are.
std::string SlabText(const Device& device, const Checkpoint& checkpoint, std::uint64_t number,
                     const Slab& slab);

/// The number that the name of a file in `slabs/` means: decimal, without zeros before it.
std::optional<std::uint64_t> ParseSlabName(std::string_view name);

/// `info`: sizes in bytes, what is loaded, how many leases, and the last failure where there was
/// one. Without a newline.
std::string InfoText(const Device& device, const LoadedTensors::Amount& loaded,
                     std::uint64_t leases, const std::optional<std::string>& last_failure);

}  // namespace safetensorfs

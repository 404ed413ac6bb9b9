#pragma once

#include <optional>
#include <stop_token>

#include "gpu/process/gpu_process.h"
#include "gpu/process/message.h"

namespace safetensorfs {

/// Asks which devices there are, in a process of its own, since the first call into a driver stays
/// with a process for good. The answer says why where there is none: no driver, no GPU, or one that
/// does not answer in time.
Probed ProbeDevices(const std::optional<Identity>& identity, std::chrono::milliseconds deadline,
                    std::stop_token stop);

/// What the probe's process does: answers on the socket. Returns its exit status.
int RunProbe();

}  // namespace safetensorfs

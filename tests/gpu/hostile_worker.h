#pragma once

#include <string>

namespace safetensorfs {

/// What a test sets in the environment to have one of these in place of every worker.
inline constexpr char kHostileWorker[] = "HOSTILE_WORKER";

/// A worker that another user has replaced with a program of their own. `how` is one of those that
/// hostile_worker.cc names. Returns its exit status.
int RunHostileWorker(const std::string& how);

}  // namespace safetensorfs

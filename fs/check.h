#pragma once

#include <string>

namespace safetensorfs {

/// Validates SOURCE and all in it, and prints one line per problem to stdout and one per warning to
/// stderr. Returns the exit status: 0, or the highest Fault.
int CheckSource(const std::string& source);

}  // namespace safetensorfs

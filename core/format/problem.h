#pragma once

#include <string>
#include <vector>

namespace safetensorfs {

/// What is wrong with a SOURCE, worse last. The values are the program's exit statuses.
enum class Fault {
  kUnreadable = 30,  // cannot be opened or read
  kInvalid = 31,     // not a valid safetensors file or index
  kShards = 32,      // shards missing or inconsistent
};

/// One line for a person: subject, place, rule, values.
struct Problem {
  Fault fault;
  std::string text;
};

using Problems = std::vector<Problem>;

/// No more than this many are told of one file or index.
inline constexpr std::size_t kMaxProblems = 100;

}  // namespace safetensorfs

#include "fs/check.h"

#include <algorithm>
#include <cstdio>

#include "core/base/text.h"
#include "core/tree/source_tree.h"

namespace safetensorfs {

int CheckSource(const std::string& source) {
  Problems problems;
  const auto tree = OpenSource(source, problems);
  if (tree && tree->is_folder() && tree->checkpoints.empty() && problems.empty()) {
    problems.push_back(
        {Fault::kInvalid, Printable(source) + ": holds no safetensors file or index"});
  }
  int status = 0;
  for (const Problem& problem : problems) {
    std::printf("%s\n", problem.text.c_str());
    status = std::max(status, static_cast<int>(problem.fault));
  }
  if (!tree) return status;
  const auto is_problem = [&](const std::string& warning) {
    return std::ranges::any_of(problems, [&](const Problem& p) { return p.text == warning; });
  };
  for (const std::string& warning : AllWarnings(*tree)) {
    if (!is_problem(warning)) std::fprintf(stderr, "warning: %s\n", warning.c_str());
  }
  return status;
}

}  // namespace safetensorfs

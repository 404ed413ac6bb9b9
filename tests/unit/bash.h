#pragma once

#include <sys/wait.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "tests/unit/temporary_folder.h"

namespace safetensorfs {

/// What bash prints for `script`, in a UTF-8 locale; nothing where there is no bash.
inline std::optional<std::string> RunBash(const std::string& script) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("script", script);
  const auto close = [](std::FILE* file) { return pclose(file); };
  std::unique_ptr<std::FILE, decltype(close)> pipe(
      popen(("LC_ALL=C.UTF-8 bash --norc '" + path + "' 2>/dev/null").c_str(), "r"), close);
  if (!pipe) return std::nullopt;
  std::string out;
  char buffer[4096];
  while (const std::size_t size = std::fread(buffer, 1, sizeof buffer, pipe.get())) {
    out.append(buffer, size);
  }
  const int status = pclose(pipe.release());
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127) return std::nullopt;
  return out;
}

}  // namespace safetensorfs

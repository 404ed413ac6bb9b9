// Reads safetensors files from stdin, each after its length as u64 little-endian, and prints a line
// for each: "ok", or "TERM: message" with the reference's name of the error.

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "core/format/header.h"

namespace safetensorfs {
namespace {

std::string Verdict(const std::string& file) {
  const UniqueFd fd(memfd_create("case", MFD_CLOEXEC));
  if (write(fd.get(), file.data(), file.size()) != static_cast<ssize_t>(file.size())) {
    ThrowErrno("memfd", "cannot write");
  }
  const SourceFile source("/proc/self/fd/" + std::to_string(fd.get()));
  Problems problems;
  if (ReadHeader(source, problems)) return "ok";
  const std::string& text = problems.front().text;
  const std::size_t open = text.rfind('(');
  return text.substr(open + 1, text.size() - open - 2) + ": " + text;
}

}  // namespace
}  // namespace safetensorfs

int main() {
  std::uint64_t size;
  std::string file;
  while (std::fread(&size, sizeof size, 1, stdin) == 1) {
    file.resize(size);
    if (std::fread(file.data(), 1, size, stdin) != size) return 1;
    std::puts(safetensorfs::Verdict(file).c_str());
    std::fflush(stdout);
  }
}

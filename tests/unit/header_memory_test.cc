#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <string>

#include "core/format/header.h"
#include "tests/catch.h"
#include "tests/unit/temporary_folder.h"

namespace safetensorfs {
namespace {

// Peak resident memory that a child process adds while it reads the header, in bytes. A process of
// its own: memory that an earlier case took would hide the peak.
std::int64_t PeakOfReading(const std::string& path) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto peak = [] {
      // VmHWM of a forked child starts at what it shares with its parent.
      std::ifstream status("/proc/self/status");
      std::string word;
      std::int64_t kilobytes = 0;
      while (status >> word) {
        if (word == "VmHWM:") status >> kilobytes;
      }
      return kilobytes * 1024;
    };
    std::ofstream("/proc/self/clear_refs") << 5;
    const std::int64_t before = peak();
    const SourceFile source(path);
    Problems problems;
    const bool is_valid = ReadHeader(source, problems).has_value();
    const std::int64_t grown = is_valid ? peak() - before : -1;
    _exit(write(ends[1], &grown, sizeof grown) == sizeof grown ? 0 : 1);
  }
  std::int64_t grown = -1;
  const bool is_read = read(ends[0], &grown, sizeof grown) == sizeof grown;
  close(ends[0]);
  close(ends[1]);
  int status;
  waitpid(child, &status, 0);
  CHECK(is_read);
  return grown;
}

std::string ManyTensors(std::size_t header_size) {
  std::string header = "{";
  for (std::size_t i = 0; header.size() + 200 < header_size; ++i) {
    const std::string at = std::to_string(i);
    if (i > 0) header += ',';
    header += "\"model.layers." + std::to_string(i % 61) + ".mlp.experts." + at +
              ".down_proj.weight\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[" + at + ',' +
              std::to_string(i + 1) + "]}";
  }
  return header + "}";
}

}  // namespace

TEST_CASE("Reading a header takes less memory than three times its size") {
#ifdef SAFETENSORFS_SANITIZED
  return;  // a sanitizer's own memory would be measured
#endif
  const TemporaryFolder folder;
  const std::string many = ManyTensors(kMaxHeaderSize);
  std::size_t count = 0;
  for (std::size_t at = 0; (at = many.find("\"U8\"", at)) != many.npos; ++at) ++count;
  const std::int64_t limit = static_cast<std::int64_t>(3 * many.size());
  SECTION("of 100 MB and a million tensors") {
    const std::int64_t peak =
        PeakOfReading(folder.Write("m", MakeFile(many, std::string(count, 'd'))));
    CHECK(peak > 0);
    CHECK(peak < limit);
  }
  SECTION("of 100 MB in millions of tiny metadata strings") {
    std::string header = R"({"__metadata__":{)";
    for (std::size_t i = 0; header.size() + 100 < kMaxHeaderSize; ++i) {
      header += (i > 0 ? ",\"" : "\"") + std::to_string(i % 10) + "\":\"\"";
    }
    const std::int64_t peak = PeakOfReading(folder.Write("m", MakeFile(header + "}}")));
    CHECK(peak > 0);
    CHECK(peak < limit);
  }
  SECTION("of 100 MB in one metadata string") {
    const std::string value(kMaxHeaderSize - 100, 'v');
    const std::int64_t peak =
        PeakOfReading(folder.Write("m", MakeFile(R"({"__metadata__":{"k":")" + value + R"("}})")));
    CHECK(peak > 0);
    CHECK(peak < limit);
  }
}

}  // namespace safetensorfs

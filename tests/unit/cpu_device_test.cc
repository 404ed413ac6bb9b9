#include "core/device/cpu_device.h"

#include <cerrno>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "tests/catch.h"
#include "tests/unit/temporary_folder.h"

namespace safetensorfs {
namespace {

// What this process has locked, in bytes.
std::uint64_t Locked() {
  std::ifstream status("/proc/self/status");
  std::string word;
  std::uint64_t kilobytes = 0;
  while (status >> word) {
    if (word == "VmLck:") status >> kilobytes;
  }
  return kilobytes * 1024;
}

// `count` tensors of `nbytes` each.
std::string File(std::size_t count, std::size_t nbytes) {
  std::string header = "{";
  for (std::size_t i = 0; i < count; ++i) {
    header += (i > 0 ? ",\"t" : "\"t") + std::to_string(i) + R"(":{"dtype":"U8","shape":[)" +
              std::to_string(nbytes) + R"(],"data_offsets":[)" + std::to_string(i * nbytes) + "," +
              std::to_string((i + 1) * nbytes) + "]}";
  }
  return MakeFile(header + "}", std::string(count * nbytes, 'd'));
}

std::vector<std::uint32_t> All(const Checkpoint& checkpoint) {
  std::vector<std::uint32_t> tensors(checkpoint.index.size());
  std::iota(tensors.begin(), tensors.end(), 0);
  return tensors;
}

}  // namespace

TEST_CASE("Loading locks pages, unloading in any order unlocks them all") {
  const TemporaryFolder folder;
  Problems problems;
  const auto checkpoint = OpenFile(folder.Write("m", File(50, 1000)), problems);
  REQUIRE(checkpoint);
  CpuDevice cpu;
  Progress progress;
  const std::uint64_t before = Locked();
  cpu.Load(*checkpoint, All(*checkpoint), {}, progress, {});
#ifndef SAFETENSORFS_SANITIZED  // whose runtime makes mlock do nothing
  CHECK(Locked() - before == cpu.Info().held_nbytes);
#endif
  CHECK(cpu.Info().held_nbytes >= 50'000);
  CHECK(progress.done == progress.total);
  for (const std::uint32_t step : {7u, 0u}) {
    for (std::uint32_t i = 0; i < 50; ++i) {
      if ((i % 10 == 7) == (step == 7)) cpu.Unload(*checkpoint, std::vector{i});
    }
  }
  CHECK(cpu.Info().held_nbytes == 0);
  CHECK(Locked() == before);
}

TEST_CASE("A cancelled load leaves nothing locked") {
  const TemporaryFolder folder;
  Problems problems;
  const auto checkpoint = OpenFile(folder.Write("m", File(3, 100'000)), problems);
  CpuDevice cpu;
  Progress progress;
  std::stop_source stop;
  stop.request_stop();
  try {
    cpu.Load(*checkpoint, All(*checkpoint), {}, progress, stop.get_token());
    FAIL("loaded");
  } catch (const Error& error) {
    CHECK(error.code() == EINTR);
  }
  CHECK(cpu.Info().held_nbytes == 0);
}

TEST_CASE("What is loaded is what the source holds, and a source that shrank is an error") {
  const TemporaryFolder folder;
  Problems problems;
  const std::string bytes = File(2, 100'000);
  const auto checkpoint = OpenFile(folder.Write("m", bytes), problems);
  CpuDevice cpu;
  Progress progress;
  cpu.Load(*checkpoint, All(*checkpoint), {}, progress, {});
  cpu.Verify(*checkpoint, All(*checkpoint), progress, {});
  folder.Write("m", bytes.substr(0, 1000));
  CHECK_THROWS_AS(cpu.Verify(*checkpoint, All(*checkpoint), progress, {}), Error);
  cpu.Unload(*checkpoint, All(*checkpoint));
  CHECK_THROWS_AS(cpu.Load(*checkpoint, All(*checkpoint), {}, progress, {}), Error);
  CHECK(cpu.Info().held_nbytes == 0);
}

}  // namespace safetensorfs

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "gpu/worker/source_reader.h"
#include "gpu/worker/staging.h"
#include "tests/gpu_check/json_line.h"
#include "tests/gpu_check/measurements.h"
#include "tests/gpu_check/stopwatch.h"

namespace safetensorfs {

void MeasureReads(const std::string& path, std::size_t threads) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status;
  if (!fd || fstat(fd.get(), &status) != 0) ThrowErrno(path, "cannot be opened");
  const auto nbytes = static_cast<std::uint64_t>(status.st_size);
  const SourceReader source(std::move(fd), path, false);

  std::atomic<std::uint64_t> next = 0;
  const auto read = [&](std::vector<std::byte>& slots) {
    std::size_t turn = 0;
    for (std::uint64_t at; (at = next.fetch_add(Staging::kSlot)) < nbytes; ++turn) {
      iovec part = {slots.data() + turn % 2 * Staging::kSlot,
                    std::min<std::uint64_t>(Staging::kSlot, nbytes - at)};
      source.Read({&part, 1}, at);
    }
  };
  std::vector<std::vector<std::byte>> slots(threads, std::vector<std::byte>(2 * Staging::kSlot));
  const Stopwatch watch;
  {
    std::vector<std::jthread> readers;
    for (auto& own : slots) readers.emplace_back(read, std::ref(own));
  }
  JsonLine().AddSeconds("bytes_per_second", static_cast<double>(nbytes) / watch.seconds()).Print();
}

}  // namespace safetensorfs

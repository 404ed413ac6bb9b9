#include "gpu/worker/window_reader.h"

#include <fcntl.h>

#include <cerrno>
#include <cstdlib>
#include <random>

#include "core/base/error.h"
#include "tests/catch.h"
#include "tests/gpu/model.h"
#include "tests/unit/temporary_folder.h"

namespace safetensorfs {
namespace {

constexpr std::size_t kSlot = 1 << 20;
constexpr std::uint64_t kWindow = kSlot - WindowReader::kMargin;

struct FreeSlot {
  void operator()(std::byte* memory) const { std::free(memory); }
};

// Reads all transfers window by window and puts them together as a slab would hold them.
std::string ReadAll(const std::vector<Transfer>& transfers,
                    const std::vector<SourceReader>& sources, std::size_t slab_nbytes) {
  const std::unique_ptr<std::byte, FreeSlot> slot(
      static_cast<std::byte*>(std::aligned_alloc(4096, kSlot)));
  WindowReader reader(transfers, sources);
  std::string slab(slab_nbytes, '\0');
  for (const Window& window : PlanWindows(transfers, kWindow, 256)) {
    const std::byte* const bytes = reader.Read(window, {slot.get(), kSlot});
    CHECK(bytes + (window.end - window.begin) <= slot.get() + kSlot);
    slab.replace(window.begin, window.end - window.begin, reinterpret_cast<const char*>(bytes),
                 window.end - window.begin);
  }
  return slab;
}

std::vector<SourceReader> Open(const std::vector<std::string>& paths, bool may_bypass) {
  std::vector<SourceReader> sources;
  for (const std::string& path : paths) {
    sources.emplace_back(UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC)), path, may_bypass);
  }
  return sources;
}

// So that the next read finds nothing in the page cache.
void Evict(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  REQUIRE(fsync(fd.get()) == 0);
  REQUIRE(posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED) == 0);
}

}  // namespace

TEST_CASE("Windows hold what the sources hold, from the cache and past it") {
  const TemporaryFolder folder;
  const std::string one = Noise(3'000'001, 1);
  const std::string two = Noise(500'000, 2);
  const std::vector<std::string> paths = {folder.Write("one", one), folder.Write("two", two)};
  std::mt19937 random(1);
  for (int round = 0; round < 30; ++round) {
    std::vector<Transfer> transfers;
    std::uint64_t at = 0;
    std::uint64_t source_offset = random() % 5000;
    while (transfers.size() < 300 && source_offset < one.size()) {
      const std::uint64_t wanted = random() % 20 == 0 ? random() % 1'500'000 : random() % 9000;
      const std::uint64_t nbytes = std::min(wanted + 1, one.size() - source_offset);
      const bool from_two = random() % 7 == 0 && nbytes < two.size();
      transfers.push_back({1, at, from_two ? 0 : source_offset, nbytes, from_two ? 1u : 0u,
                           static_cast<std::uint32_t>(transfers.size())});
      at = (at + nbytes + 255) / 256 * 256;
      // Mostly one after the other, as in a file of which all is loaded.
      source_offset += nbytes + (random() % 4 == 0 ? random() % 9000 : 0);
    }
    for (const bool may_bypass : {false, true}) {
      if (may_bypass) {
        for (const std::string& path : paths) Evict(path);
      }
      const std::string slab = ReadAll(transfers, Open(paths, may_bypass), at);
      for (const Transfer& transfer : transfers) {
        const std::string& source = transfer.source == 0 ? one : two;
        REQUIRE(slab.compare(transfer.slab_offset, transfer.nbytes, source, transfer.source_offset,
                             transfer.nbytes) == 0);
      }
    }
  }
}

TEST_CASE("A source that ends early says where") {
  const TemporaryFolder folder;
  const std::string path = folder.Write("m", std::string(10'000, 'x'));
  for (const bool may_bypass : {false, true}) {
    for (const std::uint64_t nbytes : {20'000u, 700'000u}) {
      if (may_bypass) Evict(path);
      const std::vector<Transfer> transfers = {{1, 0, 5000, nbytes, 0, 0}};
      try {
        ReadAll(transfers, Open({path}, may_bypass), nbytes);
        FAIL("read");
      } catch (const Error& error) {
        CHECK(error.code() == EIO);
        CHECK(error.what() == path + ": cannot be read from byte 10000 on: the file ends there");
      }
    }
  }
}

}  // namespace safetensorfs

#include "core/tree/document.h"

#include "tests/catch.h"

namespace safetensorfs {
namespace {

std::string Row(std::uint64_t row) {
  return std::string(row % 7, 'x') + std::to_string(row) + '\n';
}

}  // namespace

TEST_CASE("A document reads the same in any pieces, and its size is what is read") {
  constexpr std::uint64_t kRows = 1000;
  std::string whole;
  for (std::uint64_t i = 0; i < kRows; ++i) whole += Row(i);
  int prepared = 0;
  const Document document(kRows, [&prepared] {
    ++prepared;
    return [](std::uint64_t row, std::string& out) { out += Row(row); };
  });
  CHECK(prepared == 0);
  CHECK(document.size() == whole.size());
  for (const std::uint64_t size : {1, 63, 64, 4096, 100'000}) {
    for (std::uint64_t offset = 0; offset < whole.size() + 10; offset += 509) {
      std::string part;
      document.Read(offset, size, part);
      CHECK(part == (offset < whole.size() ? whole.substr(offset, size) : ""));
    }
  }
  CHECK(prepared == 1);
}

TEST_CASE("A document of no rows is empty") {
  const Document document(0, [] { return [](std::uint64_t, std::string&) {}; });
  CHECK(document.size() == 0);
  std::string out;
  document.Read(0, 10, out);
  CHECK(out.empty());
}

}  // namespace safetensorfs

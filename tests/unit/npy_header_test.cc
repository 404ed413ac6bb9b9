#include "core/format/npy_header.h"

#include <string>
#include <vector>

#include "tests/catch.h"

namespace safetensorfs {
namespace {

std::string DictOf(const std::string& header) {
  const std::size_t begin = header.find('{');
  return header.substr(begin, header.rfind('}') + 1 - begin);
}

}  // namespace

TEST_CASE("A .npy header spells shapes as Python does and ends at a multiple of 64 bytes") {
  const std::vector<std::uint64_t> two = {768, 2304};
  const std::vector<std::uint64_t> one = {5};
  const std::string header = NpyHeader(Dtype::kF32, two, 7077888);
  CHECK(header.size() % 64 == 0);
  CHECK(header.starts_with(std::string("\x93NUMPY\x01\x00", 8)));
  CHECK(header.ends_with('\n'));
  CHECK(static_cast<unsigned char>(header[8]) + 256 * static_cast<unsigned char>(header[9]) ==
        static_cast<int>(header.size()) - 10);
  CHECK(DictOf(header) == "{'descr': '<f4', 'fortran_order': False, 'shape': (768, 2304), }");
  CHECK(DictOf(NpyHeader(Dtype::kBF16, one, 10)) ==
        "{'descr': '<V2', 'fortran_order': False, 'shape': (5,), }");
  CHECK(DictOf(NpyHeader(Dtype::kBool, {}, 1)) ==
        "{'descr': '|b1', 'fortran_order': False, 'shape': (), }");
}

TEST_CASE("Sub-byte types are packed bytes") {
  const std::vector<std::uint64_t> shape = {4, 8};
  CHECK(DictOf(NpyHeader(Dtype::kF4, shape, 16)) ==
        "{'descr': '|u1', 'fortran_order': False, 'shape': (16,), }");
}

TEST_CASE("A shape too long for version 1.0 takes version 2.0") {
  const std::vector<std::uint64_t> ones(30'000, 1);
  const std::string header = NpyHeader(Dtype::kU8, ones, 1);
  CHECK(header.starts_with(std::string("\x93NUMPY\x02\x00", 8)));
  CHECK(header.size() % 64 == 0);
  CHECK(header.size() > 65535);
}

TEST_CASE("A header's size is known without making it") {
  const std::vector<std::uint64_t> powers = {0, 9, 10, 99, 100, 18446744073709551615u};
  for (std::size_t rank : {0, 1, 2, 6}) {
    const std::span shape = std::span(powers).first(rank);
    for (const Dtype dtype : {Dtype::kF32, Dtype::kF4, Dtype::kF8E4M3FNUZ}) {
      CHECK(NpyHeaderSize(dtype, shape, 123) == NpyHeader(dtype, shape, 123).size());
    }
  }
  for (std::size_t rank = 21'000; rank < 22'000; ++rank) {
    const std::vector<std::uint64_t> ones(rank, 1);
    CHECK(NpyHeaderSize(Dtype::kU8, ones, 1) == NpyHeader(Dtype::kU8, ones, 1).size());
  }
}

}  // namespace safetensorfs

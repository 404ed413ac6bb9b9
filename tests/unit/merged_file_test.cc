#include "core/tree/merged_file.h"

#include <unistd.h>

#include <string>

#include "tests/catch.h"
#include "tests/unit/temporary_folder.h"

namespace safetensorfs {
namespace {

std::string ReadPieces(const Pieces& pieces) {
  std::string out;
  pieces.ForEach([&out](const Piece& piece) {
    std::string bytes(piece.size, '\0');
    if (piece.fd < 0) {
      bytes.assign(reinterpret_cast<const char*>(piece.memory), piece.size);
    } else {
      REQUIRE(pread(piece.fd, bytes.data(), bytes.size(), static_cast<off_t>(piece.offset)) ==
              static_cast<ssize_t>(bytes.size()));
    }
    out += bytes;
  });
  return out;
}

std::string Read(const MergedFile& file, std::uint64_t offset, std::uint64_t size) {
  Pieces pieces;
  file.Read(offset, size, pieces);
  return ReadPieces(pieces);
}

constexpr char kIndex[] = R"({"weight_map":{"a":"1","b":"1","e":"1","c":"2","d":"2","f":"2"}})";

}  // namespace

TEST_CASE("Shards become one valid file in which every tensor is aligned") {
  const TemporaryFolder folder;
  folder.Write("1", MakeFile(R"({"__metadata__":{"k":"v"},)"
                             R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                             R"("e":{"dtype":"F32","shape":[0],"data_offsets":[4,4]},)"
                             R"("unlisted":{"dtype":"U8","shape":[2],"data_offsets":[4,6]},)"
                             R"("b":{"dtype":"U8","shape":[3],"data_offsets":[6,9]}})",
                             "AAAAuuBBB"));
  folder.Write("2", MakeFile(R"({"c":{"dtype":"F64","shape":[],"data_offsets":[0,8]},)"
                             R"("d":{"dtype":"U8","shape":[1],"data_offsets":[8,9]},)"
                             R"("f":{"dtype":"F4","shape":[2],"data_offsets":[9,10]}})",
                             "CCCCCCCCDF"));
  Problems problems;
  const auto checkpoint = OpenIndex(folder.Write("m.safetensors.index.json", kIndex), problems);
  REQUIRE(checkpoint);
  CHECK(checkpoint->warnings.size() == 1);
  const MergedFile merged(*checkpoint);
  const std::string whole = Read(merged, 0, merged.size());
  REQUIRE(whole.size() == merged.size());

  const auto again = OpenFile(folder.Write("merged", whole), problems);
  REQUIRE(again);
  CHECK(again->metadata.size() == 1);
  CHECK(again->metadata.Find("k") == "v");
  REQUIRE(again->index.size() == 6);
  const std::pair<std::string, std::string> expected[] = {
      {"a", "AAAA"}, {"b", "BBB"}, {"c", "CCCCCCCC"}, {"d", "D"}, {"e", ""}, {"f", "F"}};
  for (const auto& [name, bytes] : expected) {
    const auto tensor = again->index.FindName(name);
    REQUIRE(tensor);
    const TensorIndex::Entry& entry = again->index[*tensor];
    CHECK(whole.substr(entry.offset, entry.nbytes) == bytes);
    CHECK(entry.offset % std::max(1u, again->index.dtype(*tensor).bits / 8) == 0);
  }
  for (std::uint64_t offset = 0; offset < whole.size() + 2; ++offset) {
    for (const std::uint64_t size : {1, 3, 8, 1000}) {
      CHECK(Read(merged, offset, size) ==
            (offset < whole.size() ? whole.substr(offset, size) : ""));
    }
  }
}

TEST_CASE("A single file is itself") {
  const TemporaryFolder folder;
  const std::string bytes =
      MakeFile(R"( {"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", "xyz");
  Problems problems;
  const auto checkpoint = OpenFile(folder.Write("m", bytes), problems);
  REQUIRE(checkpoint);
  const MergedFile merged(*checkpoint);
  CHECK(Read(merged, 0, 1000) == bytes);
  CHECK(Read(merged, 5, 7) == bytes.substr(5, 7));
}

}  // namespace safetensorfs

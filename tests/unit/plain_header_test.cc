#include "core/format/plain_header.h"

#include <random>
#include <string>

#include "core/format/header_json.h"
#include "tests/catch.h"
#include "tests/unit/temporary_folder.h"

namespace safetensorfs {
namespace {

struct Reading {
  bool is_taken;
  Header header;
};

Reading ReadPlain(const TemporaryFolder& folder, const std::string& json) {
  const SourceFile source(folder.Write("m", json));
  Reading reading;
  reading.is_taken = ReadPlainHeader(source, 0, json.size(), reading.header);
  return reading;
}

// What the reader of all JSON makes of a header that this one takes is the same.
void CheckSame(const TemporaryFolder& folder, const std::string& json, Header& plain) {
  INFO(json.substr(0, 2000));
  const SourceFile source(folder.Write("m", json));
  Header header;
  REQUIRE(ReadHeaderJson(source, 0, json.size(), header) == "");
  REQUIRE(plain.tensors.size() == header.tensors.size());
  REQUIRE(plain.names == header.names);
  REQUIRE(plain.shapes == header.shapes);
  for (std::size_t i = 0; i < header.tensors.size(); ++i) {
    const TensorInfo& a = plain.tensors[i];
    const TensorInfo& b = header.tensors[i];
    REQUIRE(plain.name(a) == header.name(b));
    REQUIRE(a.begin == b.begin);
    REQUIRE(a.end == b.end);
    REQUIRE(a.shape_offset == b.shape_offset);
    REQUIRE(a.rank == b.rank);
    REQUIRE(a.dtype == b.dtype);
  }
  plain.metadata.Finish();
  header.metadata.Finish();
  REQUIRE(plain.metadata.size() == header.metadata.size());
  for (std::size_t i = 0; i < header.metadata.size(); ++i) {
    REQUIRE(plain.metadata.key(i) == header.metadata.key(i));
    REQUIRE(plain.metadata.value(i) == header.metadata.value(i));
  }
}

std::string Tensor(std::uint32_t number) {
  return "\"model.layers." + std::to_string(number) +
         R"(.weight":{"dtype":"BF16","shape":[8,16],"data_offsets":[)" +
         std::to_string(number * 256) + "," + std::to_string(number * 256 + 256) + "]}";
}

std::string Many(std::uint32_t count) {
  std::string json = R"({"__metadata__":{"format":"pt","":"x y"},)";
  for (std::uint32_t i = 0; i < count; ++i) json += (i > 0 ? "," : "") + Tensor(i);
  return json + "}";
}

}  // namespace

TEST_CASE("Headers as programs write them are plain") {
  const TemporaryFolder folder;
  for (const std::string& json :
       {Many(1), Many(10'000), Many(3) + "      ",
        std::string(R"({"a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}})"),
        std::string("{\n \"a\":{\"shape\":[0],\"data_offsets\":[0,0],\"dtype\":\"U8\"}\n}\n"),
        std::string(R"({"":{"dtype":"F8_E4M3","shape":[1,2,3],"data_offsets":[0,6]}})"),
        std::string(R"({"__metadata__":{}})")}) {
    Reading reading = ReadPlain(folder, json);
    REQUIRE(reading.is_taken);
    CheckSame(folder, json, reading.header);
  }
}

TEST_CASE("Everything else is left to the reader of all JSON") {
  const TemporaryFolder folder;
  const std::string a = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  for (const std::string& json : {
           std::string(""),
           std::string("{"),
           std::string("{}"),
           std::string("[]"),
           "{" + a,
           "{" + a + "}x",
           "{" + a + ",}",
           "{," + a + "}",
           "{" + a + " " + a + "}",
           " {" + a + "}]",
           "\xEF\xBB\xBF{" + a + "}",
           std::string(R"({"a\n":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})"),
           std::string("{\"\xC3\xA4\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}"),
           std::string("{\"a\tb\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}"),
           std::string(R"({"a":{"dtype":"u8","shape":[4],"data_offsets":[0,4]}})"),
           std::string(R"({"a":{"dtype":"U8","shape":[04],"data_offsets":[0,4]}})"),
           std::string(R"({"a":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}})"),
           std::string(R"({"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}})"),
           std::string(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4,4]}})"),
           std::string(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0]}})"),
           std::string(R"({"a":{"dtype":"U8","shape":[4,],"data_offsets":[0,4]}})"),
           std::string(R"({"a":{"dtype":"U8","shape":[4]}})"),
           std::string(R"({"a":{"dtype":"U8","shape":[4],"shape":[4],"data_offsets":[0,4]}})"),
           std::string(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":1}})"),
           std::string(
               R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,9999999999999999999]}})"),
           std::string(R"({"__metadata__":{"a":1},)") + a + "}",
           std::string(R"({"__metadata__":{},"__metadata__":{},)") + a + "}",
           "{\"" + std::string(300'000, 'n') + a.substr(2) + "}",
       }) {
    INFO(json.substr(0, 200));
    CHECK_FALSE(ReadPlain(folder, json).is_taken);
  }
}

TEST_CASE("What is taken of broken headers is what the reader of all JSON takes") {
  const TemporaryFolder folder;
  std::mt19937 random(1);
  const std::string alphabet = "{}[]\":,0129 \\\n\x01\x7F\xC3.e-adt_";
  int taken = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string json = Many(random() % 4 + 1);
    for (auto i = random() % 3; i > 0; --i) {
      const std::size_t at = random() % json.size();
      switch (random() % 3) {
        case 0:
          json.erase(at, random() % 3 + 1);
          break;
        case 1:
          json.insert(at, 1, alphabet[random() % alphabet.size()]);
          break;
        default:
          json[at] = alphabet[random() % alphabet.size()];
      }
    }
    Reading reading = ReadPlain(folder, json);
    if (!reading.is_taken) continue;
    ++taken;
    CheckSame(folder, json, reading.header);
  }
  CHECK(taken > 1000);
}

TEST_CASE("Members may end anywhere in a window") {
  const TemporaryFolder folder;
  for (std::size_t blanks = 0; blanks < 300; blanks += 7) {
    std::string json = Many(4000);
    json.insert(1, std::string(blanks, ' '));
    Reading reading = ReadPlain(folder, json);
    REQUIRE(reading.is_taken);
    CheckSame(folder, json, reading.header);
  }
}

}  // namespace safetensorfs

#include "core/format/header.h"

#include <string>

#include "tests/catch.h"
#include "tests/unit/temporary_folder.h"

namespace safetensorfs {
namespace {

// The problems of a file of these bytes, without its path: one line each; "valid" if none.
std::string Verdict(const std::string& bytes) {
  const TemporaryFolder folder;
  const SourceFile source(folder.Write("model.safetensors", bytes));
  Problems problems;
  if (ReadHeader(source, problems)) return "valid";
  std::string out;
  for (const Problem& problem : problems) {
    CHECK(problem.fault == Fault::kInvalid);
    CHECK(problem.text.starts_with(source.path() + ": "));
    out += (out.empty() ? "" : "\n") + problem.text.substr(source.path().size() + 2);
  }
  return out;
}

std::string VerdictOnHeader(const std::string& header, std::size_t nbytes = 0) {
  return Verdict(MakeFile(header, std::string(nbytes, 'd')));
}

std::string Entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

std::string OneTensor(const std::string& dtype, const std::string& shape,
                      const std::string& offsets, std::size_t nbytes) {
  return VerdictOnHeader(R"({"a":)" + Entry(dtype, shape, offsets) + "}", nbytes);
}

bool EndsWith(const std::string& text, const std::string& term) {
  INFO(text);
  return text.ends_with("(" + term + ")");
}

constexpr char kJson[] = "InvalidHeaderDeserialization";

std::string Nested(int levels) {
  return R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":)" + std::string(levels, '[') +
         std::string(levels, ']') + "}}";
}

}  // namespace

TEST_CASE("A file must hold eight bytes and the header that they announce") {
  CHECK(Verdict("") == "holds 0 bytes, a safetensors file starts with 8 (HeaderTooSmall)");
  CHECK(Verdict("1234567") == "holds 7 bytes, a safetensors file starts with 8 (HeaderTooSmall)");
  CHECK(Verdict(LittleEndian64(60)) ==
        "truncated: header of 60 bytes ends at byte 68, the file has 8, 60 bytes missing at "
        "least; still downloading? (InvalidHeaderLength)");
  CHECK(EndsWith(Verdict(LittleEndian64(0xFFFFFFFF0000003C) + "{}"), "HeaderTooLarge"));
  CHECK(Verdict(LittleEndian64(100'000'001)) ==
        "header of 100000001 bytes is over the format's 100000000 (HeaderTooLarge)");
  CHECK(EndsWith(Verdict(LittleEndian64(100'000'000)), "InvalidHeaderLength"));
}

TEST_CASE("A header is UTF-8") {
  CHECK(EndsWith(VerdictOnHeader("\xFF"), "InvalidHeader"));
  CHECK(EndsWith(VerdictOnHeader("{\"\xC3\":1}"), "InvalidHeader"));
  CHECK(VerdictOnHeader("{} \xF0\x9F\x92") == "header is not UTF-8 at byte 3 (InvalidHeader)");
}

TEST_CASE("A header is exactly one JSON object") {
  CHECK(VerdictOnHeader("{}") == "valid");
  CHECK(VerdictOnHeader("{}\r \t\n") == "valid");
  CHECK(VerdictOnHeader("\t\n{}\r ") == "valid");
  CHECK(VerdictOnHeader("{ \r\n\t}      ") == "valid");
  for (const std::string header :
       {"", "{", "[]", "null", "1", "\"a\"", "{} {}", "{}x", "{},", "{,}", "\xEF\xBB\xBF{}",
        "{\"__metadata__\":{},}", "// c\n{}", "{/**/}", "{\"__metadata__\":{\"a\":\"\x01\"}}",
        "{\"__metadata__\":{\"a\":\"\\ud800\"}}", "{'__metadata__':{}}"}) {
    INFO(header);
    CHECK(EndsWith(VerdictOnHeader(header), kJson));
  }
  CHECK(VerdictOnHeader(std::string("{}\0\0", 4)) ==
        "header holds a NUL byte at byte 2 (InvalidHeaderDeserialization)");
}

TEST_CASE("Nesting is refused from 128 levels on") {
  CHECK(VerdictOnHeader(Nested(125), 1) == "valid");
  CHECK(VerdictOnHeader(Nested(126), 1) ==
        "header nests deeper than 127 levels (InvalidHeaderDeserialization)");
}

TEST_CASE("Integers are plain digits from 0 to 2^64-1") {
  CHECK(OneTensor("U8", "[4]", "[0,4]", 4) == "valid");
  for (const std::string number : {"4.0", "4e0", "-0", "-1", "18446744073709551616", "04", "+4",
                                   "\"4\"", "null", "true", "[4]", "{}"}) {
    INFO(number);
    CHECK(EndsWith(OneTensor("U8", "[" + number + "]", "[0,4]", 4), kJson));
    CHECK(EndsWith(OneTensor("U8", "[4]", "[0," + number + "]", 4), kJson));
  }
  CHECK(OneTensor("U8", "[-2]", "[0,4]", 4) ==
        "tensor \"a\": shape holds -2, must be integers from 0 to 2^64-1 "
        "(InvalidHeaderDeserialization)");
}

TEST_CASE("__metadata__ maps strings to strings") {
  CHECK(VerdictOnHeader(R"({"__metadata__":{"framework":"pt"}})") == "valid");
  CHECK(VerdictOnHeader(R"({"__metadata__":null})") == "valid");
  CHECK(VerdictOnHeader(R"({"__metadata__":{}})") == "valid");
  for (const std::string value : {"5000", "true", "[]", "{}", "null", "1.5", "-1"}) {
    INFO(value);
    CHECK(EndsWith(VerdictOnHeader(R"({"__metadata__":{"a":)" + value + "}}"), kJson));
  }
  for (const std::string value : {"5000", "true", "[]", "\"a\""}) {
    INFO(value);
    CHECK(EndsWith(VerdictOnHeader(R"({"__metadata__":)" + value + "}"), kJson));
  }
  CHECK(VerdictOnHeader(R"({"__metadata__":{},"__metadata__":{}})") ==
        "__metadata__ is given twice (InvalidHeaderDeserialization)");
}

TEST_CASE("A tensor has dtype, shape and data_offsets, each once") {
  CHECK(VerdictOnHeader(R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1) ==
        "tensor \"a\": has no dtype (InvalidHeaderDeserialization)");
  CHECK(VerdictOnHeader(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1) ==
        "tensor \"a\": has no shape (InvalidHeaderDeserialization)");
  CHECK(VerdictOnHeader(R"({"a":{"dtype":"U8","shape":[1]}})", 1) ==
        "tensor \"a\": has no data_offsets (InvalidHeaderDeserialization)");
  CHECK(VerdictOnHeader(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                        1) == "tensor \"a\": gives dtype twice (InvalidHeaderDeserialization)");
  CHECK(OneTensor("U8", "[1]", "[0,1,2]", 1) ==
        "tensor \"a\": data_offsets must be two numbers, holds more "
        "(InvalidHeaderDeserialization)");
  CHECK(OneTensor("U8", "[1]", "[0]", 1) ==
        "tensor \"a\": data_offsets must be two numbers, holds 1 (InvalidHeaderDeserialization)");
  CHECK(OneTensor("F128", "[1]", "[0,16]", 16) ==
        "tensor \"a\": unknown dtype \"F128\" (InvalidHeaderDeserialization)");
  CHECK(EndsWith(OneTensor("f32", "[1]", "[0,4]", 4), kJson));
  CHECK(VerdictOnHeader(R"({"a":5})") ==
        "tensor \"a\": must be an object, is 5 (InvalidHeaderDeserialization)");
}

TEST_CASE("Unknown fields are skipped, whatever they hold") {
  CHECK(VerdictOnHeader(R"({"a":{"x":{"dtype":[1,{"shape":null}]},"dtype":"U8","y":-0,)"
                        R"("shape":[1],"z":"s","data_offsets":[0,1],"x":1.5}})",
                        1) == "valid");
}

TEST_CASE("What the reference's JSON library lets through beyond the text is refused") {
  CHECK(EndsWith(VerdictOnHeader(R"({"a":["U8",[4],[0,4]]})", 4), kJson));
  CHECK(EndsWith(
      VerdictOnHeader(R"({"a":{"dtype":{"F32":null},"shape":[1],"data_offsets":[0,4]}})", 4),
      kJson));
}

TEST_CASE("A tensor name given twice is an error that names the tensor") {
  const std::string entry = Entry("U8", "[0]", "[0,0]");
  CHECK(VerdictOnHeader(R"({"a/b":)" + entry + R"(,"a\u002fb":)" + entry + "}") ==
        "tensor \"a/b\" is given twice (DuplicateName)");
}

TEST_CASE("Data follow each other without holes or overlaps") {
  CHECK(OneTensor("I32", "[2,2]", "[0,16]", 16) == "valid");
  CHECK(OneTensor("F32", "[1]", "[100,0]", 4) ==
        "tensor \"a\": data_offsets [100,0) end before they begin (InvalidOffset)");
  CHECK(OneTensor("U8", "[1]", "[1,2]", 2) ==
        "tensor \"a\": data_offsets [1,2) leave a hole after byte 0 of the data (InvalidOffset)");
  CHECK(VerdictOnHeader(R"({"a":)" + Entry("U8", "[4]", "[0,4]") + R"(,"b":)" +
                            Entry("U8", "[4]", "[2,6]") + "}",
                        6) ==
        "tensor \"b\": data_offsets [2,6) overlap what ends at byte 4 of the data (InvalidOffset)");
  std::string ten = "{";
  for (int i = 0; i < 10; ++i) {
    ten +=
        (i > 0 ? "," : "") + ("\"t" + std::to_string(i)) + "\":" + Entry("I32", "[2,2]", "[0,16]");
  }
  CHECK(EndsWith(VerdictOnHeader(ten + "}", 16), "InvalidOffset"));
}

TEST_CASE("The data hold what dtype and shape need") {
  CHECK(OneTensor("F32", "[2,2]", "[0,12]", 12) ==
        "tensor \"a\": data_offsets [0,12) hold 12 bytes, F32 [2,2] needs 16 (TensorInvalidInfo)");
  CHECK(EndsWith(OneTensor("I32", "[2,2]", "[0,4]", 4), "TensorInvalidInfo"));
  CHECK(EndsWith(OneTensor("I32", "[2,18446744073709551614]", "[0,16]", 16), "ValidationOverflow"));
  CHECK(EndsWith(OneTensor("I32", "[2,9223372036854775807]", "[0,16]", 16), "ValidationOverflow"));
  // Left to right: the product overflows before it meets the zero.
  CHECK(EndsWith(OneTensor("U8", "[4294967296,4294967296,0]", "[0,0]", 0), "ValidationOverflow"));
  CHECK(OneTensor("U8", "[0,4294967296,4294967296]", "[0,0]", 0) == "valid");
  CHECK(OneTensor("F4", "[1,2]", "[0,1]", 1) == "valid");
  CHECK(OneTensor("F4", "[3]", "[0,2]", 2) ==
        "tensor \"a\": F4 [3] needs 12 bits, not whole bytes (MisalignedSlice)");
  CHECK(OneTensor("F6_E2M3", "[4]", "[0,3]", 3) == "valid");
}

TEST_CASE("The last tensor ends where the file ends") {
  const std::string header = R"({"a":)" + Entry("I32", "[2,2]", "[0,16]") + "}";
  const std::string end = std::to_string(8 + header.size() + 16);
  CHECK(VerdictOnHeader(header, 14) ==
        "truncated: header and tensors need " + end + " bytes, the file has " +
            std::to_string(8 + header.size() + 14) +
            ", 2 bytes missing; still downloading? (MetadataIncompleteBuffer)");
  CHECK(VerdictOnHeader(header, 21) == "5 bytes after the last tensor, which ends at byte " + end +
                                           " of " + std::to_string(8 + header.size() + 21) +
                                           " (MetadataIncompleteBuffer)");
}

TEST_CASE("Scalars, empty tensors and free order are valid") {
  CHECK(OneTensor("F32", "[]", "[0,4]", 4) == "valid");
  CHECK(OneTensor("F32", "[2,0]", "[0,0]", 0) == "valid");
  CHECK(VerdictOnHeader(R"({"a":)" + Entry("F32", "[2,0]", "[0,0]") + R"(,"b":)" +
                        Entry("F32", "[2,0]", "[0,0]") + "}") == "valid");
  CHECK(VerdictOnHeader(R"({"late":)" + Entry("U8", "[3]", "[4,7]") + R"(,"empty":)" +
                            Entry("U8", "[0]", "[4,4]") + R"(,"early":)" +
                            Entry("F32", "[1]", "[0,4]") + "}",
                        7) == "valid");
}

TEST_CASE("Every tensor that breaks a rule of layout is named, up to 100") {
  std::string header = "{";
  for (int i = 0; i < 150; ++i) {
    const std::string begin = std::to_string(i * 4);
    header += (i > 0 ? ",\"" : "\"") + std::to_string(i) +
              "\":" + Entry("U8", "[5]", "[" + begin + "," + std::to_string(i * 4 + 4) + "]");
  }
  const std::string verdict = VerdictOnHeader(header + "}", 600);
  CHECK(std::count(verdict.begin(), verdict.end(), '\n') == 100);
  CHECK(verdict.ends_with("more problems follow; the first 100 are shown"));
}

TEST_CASE("Names may be any UTF-8 string") {
  const std::string long_name(10'000, 'n');
  for (const std::string name : {"", "/", "..", R"(\u0000)", long_name.c_str(), "\xEF\xBF\xBE"}) {
    CHECK(VerdictOnHeader(R"({")" + name + R"(":)" + Entry("U8", "[1]", "[0,1]") + "}", 1) ==
          "valid");
  }
}

TEST_CASE("A header is read into its tensors, sorted by offset, and its metadata") {
  const TemporaryFolder folder;
  const SourceFile source(
      folder.Write("m", MakeFile(R"({"b":{"dtype":"BF16","shape":[1,2],"data_offsets":[1,5]},)"
                                 R"("__metadata__":{"k":"v","e":""},)"
                                 R"("a":{"dtype":"BOOL","shape":[],"data_offsets":[0,1]}})",
                                 "xyyyy")));
  Problems problems;
  const auto header = ReadHeader(source, problems);
  REQUIRE(header);
  REQUIRE(header->tensors.size() == 2);
  CHECK(header->name(header->tensors[0]) == "a");
  CHECK(header->name(header->tensors[1]) == "b");
  CHECK(header->tensors[0].dtype == Dtype::kBool);
  CHECK(header->tensors[1].dtype == Dtype::kBF16);
  CHECK(header->shape(header->tensors[0]).empty());
  CHECK(header->shape(header->tensors[1]).size() == 2);
  CHECK(header->shape(header->tensors[1])[1] == 2);
  CHECK(header->data_offset == source.size() - 5);
  CHECK(header->metadata.size() == 2);
  CHECK(header->metadata.Find("k") == "v");
  CHECK(header->metadata.Find("e") == "");
}

TEST_CASE("A header larger than the reading window is read whole") {
  std::string header = "{";
  for (int i = 0; i < 20'000; ++i) {
    const std::string at = std::to_string(i);
    header += (i > 0 ? ",\"" : "\"") + ("\xE2\x82\xAC.layer." + at) +
              "\":" + Entry("U8", "[1]", "[" + at + "," + std::to_string(i + 1) + "]");
  }
  CHECK(VerdictOnHeader(header + "}", 20'000) == "valid");
}

}  // namespace safetensorfs

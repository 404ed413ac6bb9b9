#include "core/format/shard_index.h"

#include "tests/catch.h"
#include "tests/unit/temporary_folder.h"

namespace safetensorfs {
namespace {

struct Result {
  std::optional<ShardIndex> index;
  std::string problems;
  std::optional<Fault> fault;
};

Result Read(const std::string& json) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("m.safetensors.index.json", json);
  Problems problems;
  Result result;
  result.index = ShardIndex::Read(path, problems);
  for (const Problem& problem : problems) {
    result.problems += problem.text.substr(path.size() + 2) + "\n";
    result.fault = problem.fault;
  }
  return result;
}

}  // namespace

TEST_CASE("An index gives each tensor its shard") {
  const Result result = Read(
      R"({"metadata":{"total_size":[1,{"weight_map":{"x":"y"}}]},)"
      R"("weight_map":{"b":"m-2.safetensors","a":"m-1.safetensors","c":"sub/m-2.safetensors","b":"m-2.safetensors"}})");
  REQUIRE(result.index);
  CHECK(result.index->shards() ==
        std::vector<std::string>{"m-1.safetensors", "m-2.safetensors", "sub/m-2.safetensors"});
  CHECK(result.index->tensors()[*result.index->Find("b")].shard == 1);
  CHECK(result.index->tensors()[*result.index->Find("a")].shard == 0);
  CHECK_FALSE(result.index->Find("x"));
}

TEST_CASE("What is not an index says why") {
  const std::pair<const char*, const char*> cases[] = {
      {"", "is not valid JSON"},
      {"[]", "must be a JSON object, is an array"},
      {"5", "must be a JSON object, is a number"},
      {"{}", "has no weight_map"},
      {R"({"weight_map":[]})", "weight_map must be an object, is an array"},
      {R"({"weight_map":null})", "weight_map must be an object, is null"},
      {R"({"weight_map":{"a":5}})", "weight_map gives tensor \"a\" no file name but a number"},
      {R"({"weight_map":{"a":["x"]}})", "weight_map gives tensor \"a\" no file name but an array"},
      {R"({"weight_map":{"a":{"x":"y"}}})",
       "weight_map gives tensor \"a\" no file name but an object"},
      {R"({"weight_map":{},"weight_map":{}})", "weight_map is given twice"},
  };
  for (const auto& [json, problem] : cases) {
    INFO(json);
    const Result result = Read(json);
    CHECK_FALSE(result.index);
    CHECK(result.problems.starts_with(problem));
    CHECK(result.fault == Fault::kInvalid);
  }
}

TEST_CASE("Shards stay below the folder of the index") {
  for (const std::string path : {"../m", "/m", "", ".", "a/../../m", "a/..", "m\\u0000"}) {
    INFO(path);
    const Result result = Read(R"({"weight_map":{"a":")" + path + R"("}})");
    CHECK_FALSE(result.index);
    CHECK(result.fault == Fault::kShards);
    CHECK(result.problems.find("not a path below the index's folder") != std::string::npos);
  }
  CHECK(Read(R"({"weight_map":{"a":"b/../m","c":"..m"}})").index);
}

TEST_CASE("A tensor in two shards is inconsistent") {
  const Result result = Read(R"({"weight_map":{"a":"m-1","a":"m-2"}})");
  CHECK_FALSE(result.index);
  CHECK(result.problems == "weight_map puts tensor \"a\" into two shards, \"m-1\" and \"m-2\"\n");
  CHECK(result.fault == Fault::kShards);
}

}  // namespace safetensorfs

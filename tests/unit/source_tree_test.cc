#include "core/tree/source_tree.h"

#include <filesystem>
#include <string>

#include "tests/catch.h"
#include "tests/unit/temporary_folder.h"

namespace safetensorfs {
namespace {

namespace fs = std::filesystem;

const std::string kValid =
    MakeFile(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "d");

// Names below the root, folders with a slash, sorted.
std::string Names(const SourceTree& tree, std::uint32_t folder = 0, const std::string& above = "") {
  std::string out;
  for (const SourceTree::Item& item : tree.folders[folder].items) {
    out += above + item.name + (item.kind == SourceTree::Kind::kCheckpoint ? "/\n" : "\n");
    if (item.kind == SourceTree::Kind::kFolder)
      out += Names(tree, item.number, above + item.name + "/");
  }
  return out;
}

}  // namespace

TEST_CASE("A folder is mirrored, with a folder of tensors beside each checkpoint") {
  const TemporaryFolder folder;
  folder.Write("config.json", "{}");
  folder.Write("model.safetensors", kValid);
  folder.Write("unet/net.safetensors", kValid);
  folder.Write("unet/net-1.safetensors", kValid);
  folder.Write("unet/net.safetensors.index.json", R"({"weight_map":{"a":"net-1.safetensors"}})");
  folder.Write("broken.safetensors", "nothing");
  folder.Write(".hidden.safetensors", kValid);
  fs::create_symlink("model.safetensors", folder / "link.safetensors");
  fs::create_symlink("unet", folder / "link_to_folder");
  fs::create_symlink("nowhere", folder / "dangling");

  Problems problems;
  const auto tree = OpenSource(folder.path(), problems);
  REQUIRE(tree);
  CHECK(Names(*tree) ==
        ".hidden.safetensors\n"
        ".hidden.safetensors.tensors/\n"
        "broken.safetensors\n"
        "config.json\n"
        "link.safetensors\n"
        "link.tensors/\n"
        "model.safetensors\n"
        "model.tensors/\n"
        "unet\n"
        "unet/net-1.safetensors\n"
        "unet/net.safetensors\n"
        "unet/net.safetensors.index.json\n"
        "unet/net.safetensors.index.json.tensors/\n"
        "unet/net.safetensors.tensors/\n");
  REQUIRE(problems.size() == 1);
  CHECK(problems[0].fault == Fault::kInvalid);
  CHECK(tree->warnings.size() == 2);
}

TEST_CASE("A name that is taken is not taken twice") {
  const TemporaryFolder folder;
  folder.Write("m.safetensors", kValid);
  folder.Write("m.tensors", "a file of its own");
  Problems problems;
  const auto tree = OpenSource(folder.path(), problems);
  REQUIRE(tree);
  CHECK(Names(*tree) == "m.safetensors\nm.safetensors.tensors/\nm.tensors\n");
}

TEST_CASE("The shards of an index that is wrong are shown by themselves") {
  const TemporaryFolder folder;
  folder.Write("m-1.safetensors", kValid);
  folder.Write("m.safetensors.index.json",
               R"({"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})");
  Problems problems;
  const auto tree = OpenSource(folder.path(), problems);
  REQUIRE(tree);
  CHECK(Names(*tree) == "m-1.safetensors\nm-1.tensors/\nm.safetensors.index.json\n");
  REQUIRE(problems.size() == 1);
  CHECK(problems[0].fault == Fault::kShards);
  CHECK(problems[0].text.ends_with(
      "shard \"m-2.safetensors\" is missing; tensors that the index puts there: 1"));
}

TEST_CASE("A cache folder means the snapshot that refs/main names") {
  const TemporaryFolder folder;
  const std::string model = "models--org--name/";
  folder.Write(model + "blobs/0123", kValid);
  folder.Write(model + "refs/main", "abcdef");
  fs::create_directories(folder / (model + "snapshots/abcdef"));
  fs::create_symlink("../../blobs/0123", folder / (model + "snapshots/abcdef/model.safetensors"));
  Problems problems;
  for (const std::string spelling : {"models--org--name", "models--org--name/"}) {
    const auto tree = OpenSource(folder / spelling, problems);
    REQUIRE(tree);
    CHECK(Names(*tree) == "model.safetensors\nmodel.tensors/\n");
  }
  CHECK(problems.empty());

  folder.Write(model + "refs/main", "gone");
  CHECK_FALSE(OpenSource(folder / "models--org--name", problems));
  REQUIRE(problems.size() == 1);
  CHECK(problems[0].fault == Fault::kUnreadable);
}

TEST_CASE("Every way in which shards and index disagree is an error") {
  const TemporaryFolder folder;
  folder.Write("m-1", kValid);
  Problems problems;
  CHECK_FALSE(OpenSource(
      folder.Write("x.safetensors.index.json", R"({"weight_map":{"a":"m-1","b":"m-1","c":"m-2"}})"),
      problems));
  REQUIRE(problems.size() == 2);
  CHECK(problems[0].fault == Fault::kShards);
  CHECK(problems[0].text.find("shard \"m-2\" is missing") != std::string::npos);
  CHECK(
      problems[1].text.ends_with("tensor \"b\" is not in shard \"m-1\", where the index puts it"));
}

TEST_CASE("A source that is not there or no file cannot be opened") {
  const TemporaryFolder folder;
  Problems problems;
  CHECK_FALSE(OpenSource(folder / "absent", problems));
  CHECK_FALSE(OpenSource("/dev/null", problems));
  REQUIRE(problems.size() == 2);
  CHECK(problems[0].fault == Fault::kUnreadable);
  CHECK(problems[0].text == folder / "absent" + ": cannot open: No such file or directory");
  CHECK(problems[1].text == "/dev/null: is not a regular file");
}

}  // namespace safetensorfs

#include "core/tree/tree.h"

#include <sys/time.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <set>
#include <string>

#include "core/base/error.h"
#include "tests/catch.h"
#include "tests/unit/temporary_folder.h"

#ifndef SAFETENSORFS_SANITIZED
namespace {
thread_local std::size_t allocations = 0;
}

void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace safetensorfs {
namespace {

const std::string kThree = MakeFile(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                                    R"("b/c":{"dtype":"F32","shape":[1],"data_offsets":[3,7]},)"
                                    R"("e":{"dtype":"F32","shape":[0],"data_offsets":[7,7]}})",
                                    "AAABBBB");

struct Mounted {
  explicit Mounted(const std::string& path) : source(OpenSource(path, problems)) {}
  Problems problems;
  std::unique_ptr<SourceTree> source;
  Tree tree{*source, {1000, 1001, 0}};
};

std::string NamesFrom(const Tree& tree, NodeId directory, std::uint64_t position,
                      std::size_t limit) {
  std::string out;
  tree.List(directory, position, [&](const Tree::Entry& entry) {
    if (limit-- == 0) return false;
    out += std::string(entry.name) + " ";
    return true;
  });
  return out;
}

std::uint64_t SizeOf(const Pieces& pieces) {
  std::uint64_t size = 0;
  pieces.ForEach([&size](const Piece& piece) { size += piece.size; });
  return size;
}

}  // namespace

TEST_CASE("A checkpoint's directory lists documents and tensors, and hides what holds them again") {
  const TemporaryFolder folder;
  const Mounted mounted(folder.Write("m", kThree));
  const Tree& tree = mounted.tree;
  CHECK(NamesFrom(tree, kRootNode, 0, 100) == ".summary .index.json .metadata.json a b%2Fc e ");
  for (const std::string name : {".summary", ".index.json", ".metadata.json", ".all.safetensors",
                                 ".npy", "a", "b%2Fc", "e"}) {
    INFO(name);
    const auto node = tree.Lookup(kRootNode, name);
    REQUIRE(node);
    CHECK(tree.Stat(*node).st_ino == *node);
    CHECK(tree.Stat(*node).st_uid == 1000);
    CHECK(tree.Stat(*node).st_gid == 1001);
  }
  for (const std::string name : {"b/c", "b", "", ".", "..", ".control", ".devices", "a.npy"}) {
    CHECK_FALSE(tree.Lookup(kRootNode, name));
  }
  const NodeId npy = *tree.Lookup(kRootNode, ".npy");
  CHECK(NamesFrom(tree, npy, 0, 100) == "a.npy b%2Fc.npy e.npy ");
  CHECK(tree.Lookup(npy, "a.npy"));
  CHECK_FALSE(tree.Lookup(npy, "a"));
  CHECK(tree.Parent(npy) == kRootNode);
}

TEST_CASE("A listing goes on after the entry where it stopped") {
  const TemporaryFolder folder;
  const Mounted mounted(folder.Write("m", kThree));
  std::set<std::uint64_t> positions = {0};
  std::vector<std::uint64_t> next;
  mounted.tree.List(kRootNode, 0, [&](const Tree::Entry& entry) {
    next.push_back(entry.next);
    return positions.insert(entry.next).second;
  });
  REQUIRE(next.size() == 6);
  CHECK(NamesFrom(mounted.tree, kRootNode, next[0], 100) ==
        ".index.json .metadata.json a b%2Fc e ");
  CHECK(NamesFrom(mounted.tree, kRootNode, next[2], 1) == "a ");
  CHECK(NamesFrom(mounted.tree, kRootNode, next[4], 100) == "e ");
  CHECK(NamesFrom(mounted.tree, kRootNode, next[5], 100).empty());
}

TEST_CASE("A read covers what the file holds of it, whatever the file is made of") {
  const TemporaryFolder folder;
  const Mounted mounted(folder.Write("m", kThree));
  const Tree& tree = mounted.tree;
  const NodeId npy = *tree.Lookup(kRootNode, ".npy");
  for (const NodeId node :
       {*tree.Lookup(kRootNode, "a"), *tree.Lookup(kRootNode, "e"), *tree.Lookup(npy, "b%2Fc.npy"),
        *tree.Lookup(npy, "e.npy"), *tree.Lookup(kRootNode, ".summary"),
        *tree.Lookup(kRootNode, ".index.json"), *tree.Lookup(kRootNode, ".metadata.json"),
        *tree.Lookup(kRootNode, ".all.safetensors")}) {
    const auto size = static_cast<std::uint64_t>(tree.Stat(node).st_size);
    for (const std::uint64_t offset : {0ul, 1ul, 63ul, 127ul, 128ul, 130ul, size, size + 5}) {
      for (const std::uint64_t want : {1ul, 64ul, 4096ul, 1ul << 40}) {
        Pieces pieces;
        tree.Read(node, -1, offset, want, pieces);
        CHECK(SizeOf(pieces) == (offset < size ? std::min(want, size - offset) : 0));
      }
    }
  }
}

#ifndef SAFETENSORFS_SANITIZED
TEST_CASE("Reading and looking at tensors allocates nothing") {
  const TemporaryFolder folder;
  const Mounted mounted(folder.Write("m", kThree));
  const NodeId tensor = *mounted.tree.Lookup(kRootNode, "a");
  const NodeId all = *mounted.tree.Lookup(kRootNode, ".all.safetensors");
  const std::size_t before = allocations;
  for (const NodeId node : {tensor, all}) {
    mounted.tree.Open(node);
    Pieces pieces;
    mounted.tree.Read(node, -1, 1, 2, pieces);
    mounted.tree.Stat(node);
  }
  CHECK(allocations == before);
}
#endif

TEST_CASE("A source changed in place cannot be opened any more, one replaced can") {
  const TemporaryFolder folder;
  const std::string path = folder.Write("m", kThree);
  const Mounted mounted(path);
  const NodeId tensor = *mounted.tree.Lookup(kRootNode, "a");
  const NodeId all = *mounted.tree.Lookup(kRootNode, ".all.safetensors");

  std::filesystem::rename(path, folder / "moved");
  folder.Write("m", kThree + "more");
  mounted.tree.Open(tensor);
  CHECK(mounted.source->checkpoints[0].checkpoint->sources[0].State() == SourceState::kReplaced);

  std::filesystem::last_write_time(folder / "moved", std::filesystem::file_time_type::min());
  CHECK(mounted.source->checkpoints[0].checkpoint->sources[0].State() == SourceState::kChanged);
  for (const NodeId node : {tensor, all}) {
    try {
      mounted.tree.Open(node);
      FAIL("opened");
    } catch (const Error& error) {
      CHECK(error.code() == ESTALE);
      CHECK(std::string(error.what()) == path + ": was changed in place since it was mounted");
    }
  }
  mounted.tree.Open(*mounted.tree.Lookup(kRootNode, ".summary"));
}

TEST_CASE("A mirrored file that only its owner may read stays so") {
  const TemporaryFolder folder;
  const std::string path = folder.Write("secret", "s");
  std::filesystem::permissions(path, std::filesystem::perms::owner_read);
  const Mounted mounted(folder.path());
  CHECK(mounted.tree.Stat(*mounted.tree.Lookup(kRootNode, "secret")).st_mode == (S_IFREG | 0400));
}

}  // namespace safetensorfs

#include "fs/live_files.h"

#include <cerrno>

#include "core/base/error.h"
#include "tests/catch.h"

namespace safetensorfs {

TEST_CASE("Every lookup of a live file sees the content of its own moment") {
  int content = 0;
  LiveFiles files;
  files.Add({kRootNode, ".status", S_IFREG | 0444,
             [&content](uid_t) { return std::to_string(content); }});

  const NodeId first = *files.Lookup(kRootNode, ".status");
  const NodeId second = *files.Lookup(kRootNode, ".status");
  CHECK(first != second);
  CHECK(LiveFiles::IsLive(first));
  CHECK(files.FileOf(first).ino == files.FileOf(second).ino);
  content = 1;
  CHECK(*files.Text(first, 0) == "1");
  content = 2;
  CHECK(*files.Text(first, 0) == "1");
  CHECK(*files.Text(second, 0) == "2");
}

TEST_CASE("A node is gone when the kernel has forgotten it as often as it was told") {
  LiveFiles files;
  files.Add({kRootNode, ".status", S_IFREG | 0444, [](uid_t) { return std::string("text"); }});
  const NodeId node = *files.Lookup(kRootNode, ".status");
  const auto text = files.Text(node, 0);
  files.Forget(node, 1);
  CHECK(*text == "text");
  try {
    files.Text(node, 0);
    FAIL("still there");
  } catch (const Error& error) {
    CHECK(error.code() == ESTALE);
  }
  files.Forget(node, 1);
}

TEST_CASE("Names are live in their directory only") {
  LiveFiles files;
  files.Add({kRootNode, ".status", S_IFREG | 0444, [](uid_t) { return std::string(); }});
  CHECK(files.Has(kRootNode, ".status"));
  CHECK_FALSE(files.Has(kRootNode, "status"));
  CHECK_FALSE(files.Has(2, ".status"));
  CHECK_FALSE(files.Lookup(2, ".status"));
  CHECK_FALSE(LiveFiles::IsLive(kRootNode));
}

}  // namespace safetensorfs

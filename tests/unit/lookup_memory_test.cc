#include "fs/lookup_memory.h"

#include "tests/catch.h"

namespace safetensorfs {

TEST_CASE("A thread that looked up names in a directory is remembered for that directory") {
  LookupMemory memory;
  CHECK_FALSE(memory.Remembers(100, kRootNode));
  memory.Remember(100, kRootNode);
  CHECK(memory.Remembers(100, kRootNode));
  CHECK_FALSE(memory.Remembers(101, kRootNode));
  CHECK_FALSE(memory.Remembers(100, 2));
}

}  // namespace safetensorfs

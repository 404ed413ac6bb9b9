#include "core/format/metadata.h"

#include <string>

#include "tests/catch.h"

namespace safetensorfs {

TEST_CASE("Metadata are sorted by key, and the last of two values stays") {
  Metadata metadata;
  const std::string large(1'000'000, 'x');
  metadata.Add("b", "first");
  metadata.Add("", "empty key");
  metadata.Add("large", large);
  metadata.Add("b", "");
  metadata.Add("a", "1");
  metadata.Finish();
  REQUIRE(metadata.size() == 4);
  CHECK(metadata.key(0).empty());
  CHECK(metadata.value(0) == "empty key");
  CHECK(metadata.key(1) == "a");
  CHECK(metadata.Find("b") == "");
  CHECK(metadata.Find("large") == large);
  CHECK_FALSE(metadata.Find("c"));
  CHECK_FALSE(Metadata().Find("c"));
}

}  // namespace safetensorfs

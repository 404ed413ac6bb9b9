#include "core/base/text.h"

#include "tests/catch.h"

namespace safetensorfs {

TEST_CASE("Printable text stays on one line and has no power over a terminal") {
  CHECK(Printable("plain \xC3\xA9") == "plain \xC3\xA9");
  CHECK(Printable("a\nb\tc\\d") == "a\\nb\\tc\\\\d");
  CHECK(Printable("\x1B[31m\x7F") == "\\x1B[31m\\x7F");
  CHECK(Printable("\xC2\x9B"
                  "31m") == "\\xC2\\x9B31m");
  CHECK(Printable("\xFFz") == "\\xFFz");
  CHECK(Printable(std::string(2000, 'x'), 10) == "xxxxxxxxxx… (2,000 bytes)");
}

TEST_CASE("JSON strings escape what must be and replace what cannot be") {
  std::string out;
  AppendJsonString("h.0.weight", out);
  AppendJsonString("q\"\\\n\x01", out);
  AppendJsonString("\xFF", out);
  CHECK(out == "\"h.0.weight\"\"q\\\"\\\\\\n\\u0001\"\"\xEF\xBF\xBD\"");
}

TEST_CASE("Numbers are grouped for people") {
  CHECK(Grouped(0) == "0");
  CHECK(Grouped(999) == "999");
  CHECK(Grouped(548105171) == "548,105,171");
  CHECK(Hex64(0xABCDEF) == "0000000000abcdef");
}

}  // namespace safetensorfs

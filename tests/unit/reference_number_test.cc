#include "core/format/reference_number.h"

#include <string>

#include "tests/catch.h"

namespace safetensorfs {

TEST_CASE("Numbers are taken or refused as serde_json does") {
  const std::string zeros(300, '0');
  for (const std::string& text :
       {std::string("0"), std::string("1.5"), std::string("-1e308"),
        std::string("1.7976931348623157e308"), std::string("1e-400"), std::string("0e999999999999"),
        std::string("1e-999999999999"), "1" + zeros, "1" + zeros + "000e-100",
        "0." + zeros + "1e600", std::string("0E+5")}) {
    INFO(text);
    CHECK(ReferenceTakesNumber(text));
  }
  // The last one rounds to the largest double; serde_json's product of digits and power does not.
  for (const std::string& text :
       {std::string("1e309"), std::string("1e999999999999"), std::string("-1e400"),
        "1" + zeros + "000000000", std::string("1.7976931348623158e308")}) {
    INFO(text);
    CHECK_FALSE(ReferenceTakesNumber(text));
  }
}

}  // namespace safetensorfs

#include "core/base/utf8.h"

#include <string>

#include "tests/catch.h"

namespace safetensorfs {
namespace {

bool IsUtf8(std::string_view text, std::size_t piece) {
  Utf8Validator validator;
  for (std::size_t at = 0; at < text.size(); at += piece) validator.Feed(text.substr(at, piece));
  return validator.Finish();
}

}  // namespace

TEST_CASE("UTF-8 is recognised however it is cut") {
  for (const std::string text : {"", "plain ASCII of some length", "\xC3\xA9t\xC3\xA9",
                                 "\xE2\x82\xAC\xEF\xBF\xBF\xED\x9F\xBF", "\xF0\x9F\x98\x80",
                                 "\xF4\x8F\xBF\xBF", "eight by\xF0\x90\x80\x80 eight by"}) {
    for (const std::size_t piece : {1, 2, 3, 5, 100}) CHECK(IsUtf8(text, piece));
  }
}

TEST_CASE("What is not UTF-8 is refused however it is cut") {
  for (const std::string text :
       {"\x80", "\xC0\xAF", "\xC1\xBF", "\xE0\x80\xAF", "\xE0\x9F\xBF", "\xED\xA0\x80",
        "\xF0\x80\x80\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xC3", "a\xE2\x82",
        "\xF0\x9F\x98", "\xE2\x28\xA1", "12345678\xFF"}) {
    for (const std::size_t piece : {1, 2, 3, 100}) CHECK_FALSE(IsUtf8(text, piece));
  }
}

TEST_CASE("The position of the first bad byte is known") {
  Utf8Validator validator;
  CHECK(validator.Feed("ab\xE2"));
  CHECK(validator.Feed("\x82\xAC"));
  CHECK_FALSE(validator.Feed("c\xFF"));
  CHECK(validator.position() == 6);
}

}  // namespace safetensorfs

#include "core/format/file_name.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/catch.h"

namespace safetensorfs {

TEST_CASE("What a file name cannot hold is escaped, and nothing else") {
  CHECK(EscapeName("h.0.weight") == "h.0.weight");
  CHECK(EscapeName("a/b") == "a%2Fb");
  CHECK(EscapeName(std::string("a\0b", 3)) == "a%00b");
  CHECK(EscapeName("100%") == "100%25");
  CHECK(EscapeName(".status") == "%2Estatus");
  CHECK(EscapeName(".") == "%2E");
  CHECK(EscapeName("..") == "%2E.");
  CHECK(EscapeName("") == "%empty");
  CHECK(EscapeName("%empty") == "%25empty");
  CHECK(EscapeName("tab\tnew\nline \xF4\x8F\xBF\xBF") == "tab\tnew\nline \xF4\x8F\xBF\xBF");
}

TEST_CASE("An escaped name leads back to its name, and only the spelling that is written does") {
  for (const std::string& name :
       {std::string("a/b"), std::string("a\0b", 3), std::string("%2F"), std::string(".."),
        std::string(""), std::string("%~0"), std::string("a.b%/%.")}) {
    CHECK(UnescapeName(EscapeName(name)) == name);
  }
  for (const std::string other :
       {"%41", "%2f", "%", "a%", "a%2", ".a", "a%2E", "%Empty", "", "/"}) {
    INFO(other);
    CHECK_FALSE(UnescapeName(other));
  }
}

TEST_CASE("Names that would be too long are cut at whole characters and whole escapes") {
  CHECK_FALSE(NeedsShortening(std::string(250, 'x')));
  CHECK(NeedsShortening(std::string(251, 'x')));
  CHECK_FALSE(NeedsShortening(std::string(83, '/')));
  CHECK(NeedsShortening(std::string(84, '/')));

  const std::string plain = ShortenedName(std::string(300, 'x'), 0);
  CHECK(plain.size() == 218);
  CHECK(plain.starts_with(std::string(200, 'x') + "%~"));
  CHECK(plain.find_first_not_of("0123456789abcdef", 202) == plain.npos);

  for (std::size_t shift = 0; shift < 4; ++shift) {
    std::string euros(shift, 'x');
    std::string slashes(shift, 'x');
    for (int i = 0; i < 100; ++i) {
      euros += "\xE2\x82\xAC";
      slashes += '/';
    }
    const std::string cut_euros = ShortenedName(euros, 0);
    const std::size_t mark = cut_euros.find("%~");
    CHECK((mark - shift) % 3 == 0);
    const std::string cut_slashes = ShortenedName(slashes, 0);
    CHECK((cut_slashes.find("%~") - shift) % 3 == 0);
    CHECK(mark >= 198);
  }
}

TEST_CASE("Long names that differ anywhere get different file names") {
  const std::string base(400, 'n');
  std::set<std::string> names;
  for (std::size_t i = 0; i < base.size(); ++i) {
    std::string name = base;
    name[i] = 'm';
    names.insert(ShortenedName(name, 0));
  }
  CHECK(names.size() == base.size());
  CHECK(ShortenedName(base, 0) != ShortenedName(base, 1));
}

}  // namespace safetensorfs

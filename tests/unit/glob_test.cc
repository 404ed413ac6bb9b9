#include "core/control/glob.h"

#include <random>
#include <string>
#include <vector>

#include "core/control/control_words.h"
#include "tests/catch.h"
#include "tests/unit/bash.h"

namespace safetensorfs {
namespace {

// The pattern that a word of the control language spells.
Glob GlobOf(std::string_view word) {
  std::vector<ControlWord> words = SplitWords(word);
  REQUIRE(words.size() == 1);
  return Glob(words[0].text, words[0].quoted);
}

bool Matches(std::string_view word, std::string_view name) { return GlobOf(word).Matches(name); }

}  // namespace

TEST_CASE("A star matches any bytes, dots and slashes too") {
  CHECK(Matches("*", ""));
  CHECK(Matches("h.*", "h.0.attn/c_attn.weight"));
  CHECK(Matches("*.weight", ".weight"));
  CHECK(Matches("*.w*", "a\n.w\xFF"));
  CHECK(Matches("a**b", "ab"));
  CHECK_FALSE(Matches("h.*", "h"));
  CHECK_FALSE(Matches("*.weight", "h.weights"));
  CHECK_FALSE(Matches("ab*ba", "aba"));
  CHECK(Matches("*abc", "ababc"));
  CHECK(Matches("*a*b?*c", "xaybzbzc"));
}

TEST_CASE("A question mark matches one character of UTF-8") {
  CHECK(Matches("h.?", "h.1"));
  CHECK(Matches("?", "\xC3\xA9"));
  CHECK(Matches("?", "\xF0\x9F\x98\x80"));
  CHECK(Matches("?", "\xFF"));
  CHECK_FALSE(Matches("?", ""));
  CHECK_FALSE(Matches("??", "\xC3\xA9"));
  CHECK_FALSE(Matches("h.?", "h.10"));
  CHECK_FALSE(Matches("*[!\xC3\xA9]", "\xC3\xA9"));
}

TEST_CASE("Brackets match one character of a list, a range or a class") {
  CHECK(Matches("h.[0-9].w", "h.7.w"));
  CHECK_FALSE(Matches("h.[0-9].w", "h.77.w"));
  CHECK_FALSE(Matches("h.[!0-9]", "h.7"));
  CHECK(Matches("h.[^0-9]", "h.x"));
  CHECK(Matches("[\xC3\xA0-\xC3\xBF]", "\xC3\xA9"));
  CHECK_FALSE(Matches("[\xC3\xA0-\xC3\xBF]", "\xC3"));
  CHECK(Matches("[!a]", "\xE2\x82\xAC"));
  CHECK(Matches("[]]", "]"));
  CHECK(Matches("[!]]", "a"));
  CHECK_FALSE(Matches("[!]]", "]"));
  CHECK(Matches("[a-]", "-"));
  CHECK(Matches("[-a]", "-"));
  CHECK_FALSE(Matches("[z-a]", "m"));
  CHECK(Matches("[a-cx-zb-y]", "m"));
  CHECK(Matches("[[:digit:]_]", "7"));
  CHECK(Matches("[[:digit:]_]", "_"));
  CHECK_FALSE(Matches("[[:digit:]]", "d"));
  CHECK(Matches("[[:xdigit:]]", "F"));
  CHECK(Matches("[[:nothing:]", ":"));
}

TEST_CASE("A bracket that nothing closes stands for itself") {
  CHECK(Matches("[", "["));
  CHECK(Matches("[]", "[]"));
  CHECK(Matches("[!", "[!"));
  CHECK(Matches("[a*", "[abc"));
  CHECK(GlobOf("a[0").IsLiteral());
  CHECK(Matches("[[:digit:]", "[:"));
  CHECK(Matches("[a']'", "[a]"));
  CHECK(Matches("a]", "a]"));
}

TEST_CASE("Quoted characters are literal") {
  CHECK_FALSE(Matches("'*'", "a"));
  CHECK(Matches("'*'", "*"));
  CHECK(Matches("h.\\**", "h.*x"));
  CHECK_FALSE(Matches("h.\\**", "h.x"));
  CHECK(Matches("[a\"-\"z]", "-"));
  CHECK_FALSE(Matches("[a\"-\"z]", "m"));
  CHECK(Matches("['!'a]", "!"));
  CHECK(Matches("[a\\]b]", "]"));
  CHECK_FALSE(Matches("\\[ab]", "a"));
  CHECK(Matches("\\[ab]", "[ab]"));
}

TEST_CASE("A pattern knows its text, whether it is literal, and how its matches begin and end") {
  const Glob literal = GlobOf("'h.*'.w");
  CHECK(literal.IsLiteral());
  CHECK(literal.text() == "h.*.w");
  CHECK(literal.literal_prefix() == "h.*.w");
  CHECK(literal.literal_suffix() == "h.*.w");
  const Glob glob = GlobOf("h.'*'?x[ab].w");
  CHECK_FALSE(glob.IsLiteral());
  CHECK(glob.text() == "h.*?x[ab].w");
  CHECK(glob.literal_prefix() == "h.*");
  CHECK(glob.literal_suffix() == ".w");
  CHECK(GlobOf("*").literal_prefix().empty());
  CHECK(GlobOf("*").literal_suffix().empty());
  CHECK(Glob("").IsLiteral());
  CHECK(Glob("").Matches(""));
  CHECK(GlobOf("a*") == GlobOf("'a'*"));
  CHECK_FALSE(GlobOf("a*") == GlobOf("a'*'"));
  CHECK_FALSE(GlobOf("[a-z]*") == GlobOf("['a-z']*"));
}

TEST_CASE("Patterns full of stars take no exponential time") {
  const std::string name(10'000, 'a');
  CHECK_FALSE(Matches("*a*a*a*a*a*a*a*a*a*a*a*a*b", name));
  CHECK_FALSE(Matches("*a*a*a*a*a*a*a*a*a*a*a*a*b*", name));
  CHECK_FALSE(Matches("*a*a*a*a*a*a*a*a*a*a*a*a*b?", name));
  CHECK_FALSE(Matches("*?a*[a-z]*a*?a*a*a*a*[!b]*a*b[a]", name));
  CHECK(Matches("*a*a*a*a*a*a*a*a*a*a*a*a*a?", name));
  CHECK(Glob(std::string(20'000, '*') + "a").Matches(name));
}

TEST_CASE("Long rows of brackets that nothing closes take no quadratic time") {
  const std::string row(1'000'000, '[');
  CHECK(Glob(row).Matches(row));
  std::string classes;
  for (int i = 0; i < 100'000; ++i) classes += "[[:digit:]";
  CHECK_FALSE(Glob(classes).Matches("["));
  CHECK(Glob(row + "]").Matches("["));
}

TEST_CASE("Random patterns match what bash matches") {
  const std::vector<std::string> pieces = {"a",   "b",   "c",     "-",   "]",   "[",         "[",
                                           "*",   "?",   "!",     "^",   "\\a", "\xC3\xA9",  "'*'",
                                           "\\]", "\\-", "'a'",   "\\[", ".",   "[:digit:]", "1",
                                           "[a-", "[!",  "\"?\"", ":",   "]"};
  const std::vector<std::string> letters = {"a", "b", "c", "-", "]", "[", "*",
                                            "?", "!", "^", ".", "1", ":", "\xC3\xA9"};
  std::mt19937 random(7);
  const auto any_of = [&random](const std::vector<std::string>& choices, std::size_t most) {
    std::string out;
    for (std::size_t count = 1 + random() % most; count > 0; --count) {
      out += choices[random() % choices.size()];
    }
    return out;
  };
  struct Case {
    std::string word;
    std::string name;
  };
  std::vector<Case> cases;
  std::string script;
  while (cases.size() < 20'000) {
    const std::string word = any_of(pieces, 7);
    cases.push_back({word, any_of(letters, 5)});
    script += "case '" + cases.back().name + "' in " + word + ") printf 1;; *) printf 0;; esac\n";
  }
  const auto printed = RunBash(script);
  if (!printed) {
    WARN("no bash here");
    return;
  }
  REQUIRE(printed->size() == cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    INFO("pattern " << cases[i].word << " name " << cases[i].name);
    CHECK(Matches(cases[i].word, cases[i].name) == ((*printed)[i] == '1'));
  }
}

}  // namespace safetensorfs

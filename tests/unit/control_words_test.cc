#include "core/control/control_words.h"

#include <cerrno>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "tests/catch.h"
#include "tests/unit/bash.h"

namespace safetensorfs {
namespace {

using Words = std::vector<std::string>;

Words Split(std::string_view line) {
  Words words;
  for (const ControlWord& word : SplitWords(line)) {
    CHECK(word.quoted.size() == word.text.size());
    words.push_back(word.text);
  }
  return words;
}

std::string ErrorOf(std::string_view line) {
  try {
    SplitWords(line);
  } catch (const Error& error) {
    CHECK(error.code() == EINVAL);
    return error.what();
  }
  return "none";
}

// One character for each byte of the words: q if it is quoted.
std::string QuotingOf(std::string_view line) {
  std::string out;
  for (const ControlWord& word : SplitWords(line)) {
    for (const bool quoted : word.quoted) out += quoted ? 'q' : '.';
    out += ' ';
  }
  return out;
}

// Text cut after every `end`.
Words Cut(const std::string& text, char end) {
  Words pieces;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t stop = text.find(end, at);
    pieces.push_back(text.substr(at, stop - at));
    at = stop == text.npos ? text.size() : stop + 1;
  }
  return pieces;
}

const std::vector<std::string>& StrangeNames() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = {"",         " ",
                                    "a b",      "-n",
                                    "#a",       "a#",
                                    "~",        "~root",
                                    "'",        "\"",
                                    "\\",       "$'x'",
                                    "$HOME",    "`id`",
                                    "a\nb",     "\n",
                                    "\r",       "a\r",
                                    "\t",       "h.*",
                                    "h.[0]",    "?",
                                    "!x",       "{a,b}",
                                    "(a)",      "a;b&c|d",
                                    "a<b>c",    "caf\xC3\xA9",
                                    "\xFF",     "\xC3",
                                    "a=b",      "^",
                                    "%2F",      "\xE2\x80\xA8",
                                    "\xC2\x85", "\xF0\x9F\x98\x80 \x01",
                                    "\\n",      "$(x)",
                                    "\x7F",     "''",
                                    "\x1B[31m"};
    std::string bytes;
    for (int byte = 1; byte < 256; ++byte) {
      all.push_back("x" + std::string(1, static_cast<char>(byte)) + "y");
      bytes += static_cast<char>(byte);
    }
    all.push_back(bytes);
    return all;
  }();
  return names;
}

// Random lines of closed quotes, none of which makes bash expand anything or write a NUL.
class LineMaker {
 public:
  std::string Line() {
    std::string line;
    for (std::size_t parts = Upto(8); parts > 0; --parts) {
      switch (Upto(7)) {
        case 0:
          line += "'" + Some({"a", " ", "\\", "\"", "#", "$", "`", "*", "\t"}) + "'";
          break;
        case 1:
          line += '"' + InDouble() + '"';
          break;
        case 2:
          line += "$'" + InAnsi() + "'";
          break;
        case 3:
          line += Some({"\\a", "\\ ", "\\\\", "\\'", "\\\"", "\\$", "\\#", "\\*"});
          break;
        case 4:
          line += Some({" ", "\t"});
          break;
        case 5:
          line += "$\"" + InDouble() + '"';
          break;
        case 6:
          line += "#";
          break;
        default:
          line += Some({"a", "b", "*", "?", "[", "]", ".", "\xC3\xA9", "%"});
      }
    }
    return line;
  }

 private:
  std::size_t Upto(std::size_t most) {
    return std::uniform_int_distribution<std::size_t>(0, most)(random_);
  }

  std::string Some(const std::vector<std::string>& choices) {
    std::string out;
    for (std::size_t count = Upto(3); count > 0; --count) out += choices[Upto(choices.size() - 1)];
    return out;
  }

  std::string InDouble() {
    return Some({"a", " ", "'", "#", "\\$", "\\`", "\\\"", "\\\\", "\\a", "\\*", "\\'", "?", "\t"});
  }

  std::string InAnsi() {
    return Some({"a",     "7",       "f",           "\"",          " ",       "#",          "\\'",
                 "\\\\",  "\\\"",    "\\?",         "\\a",         "\\b",     "\\e",        "\\E",
                 "\\f",   "\\n",     "\\r",         "\\t",         "\\v",     "\\1",        "\\12",
                 "\\101", "\\377",   "\\777",       "\\x4",        "\\x4a",   "\\xFFf",     "\\xg",
                 "\\uE9", "\\u20AC", "\\u7g",       "\\ug",        "\\8",     "\\q",        "\\cA",
                 "\\cz",  "\\c?",    "\\U0001F600", "\\c[",        "\\c\\\\", "\\cq",       "\\*",
                 "\\-",   "\\U7",    "\\Ug",        "\\U0010FFFF", "*",       "\\c\xC3\xA9"});
  }

  std::mt19937 random_{20240229};
};

}  // namespace

TEST_CASE("A line is split at blanks, and quotes hold blanks together") {
  CHECK(Split("load cpu h.*") == Words{"load", "cpu", "h.*"});
  CHECK(Split("  load\tcpu  \t x ") == Words{"load", "cpu", "x"});
  CHECK(Split("a'b c'\"d e\"f\\ g$'h i'") == Words{"ab cd ef gh i"});
  CHECK(Split("'' \"\" $'' $\"\"") == Words{"", "", "", ""});
  CHECK(Split("") == Words{});
  CHECK(Split(" \t ") == Words{});
}

TEST_CASE("A comment begins where a word would, and nowhere else") {
  CHECK(Split("# load cpu 'x") == Words{});
  CHECK(Split("load cpu # the rest") == Words{"load", "cpu"});
  CHECK(Split("a#b ''#c \\#d '#e'") == Words{"a#b", "#c", "#d", "#e"});
}

TEST_CASE("Each kind of quote keeps what bash keeps") {
  CHECK(Split(R"('a\n$x`"*')") == Words{R"(a\n$x`"*)"});
  CHECK(Split(R"("\$ \` \" \\ \n \* ' $x `")") == Words{R"($ ` " \ \n \* ' $x `)"});
  CHECK(Split(R"(\a\\\'\"\$\*)") == Words{R"(a\'"$*)"});
  CHECK(Split("\"a\\\nb\" c\\\nd") == Words{"ab", "cd"});
  CHECK(Split(R"($'\a\b\e\E\f\n\r\t\v\\\'\"\?')") == Words{"\a\b\x1B\x1B\f\n\r\t\v\\'\"?"});
  CHECK(Split(R"($'\1\12\101\1012\777')") == Words{"\x01\nAA2\xFF"});
  CHECK(Split(R"($'\x4\x4a\x4aB\xg')") == Words{"\x04JJB\\xg"});
  CHECK(Split(R"($'\uE9\u20AC\u20ACx\U1F600\U0010FFFFx\ug')") ==
        Words{"\xC3\xA9\xE2\x82\xAC\xE2\x82\xACx\xF0\x9F\x98\x80\xF4\x8F\xBF\xBFx\\ug"});
  CHECK(Split(R"($'\cA\cz\c?\c\\\c')") == Words{"\x01\x1A\x7F\x1C\\c"});
  CHECK(Split(R"($'\q\8\*')") == Words{R"(\q\8\*)"});
  CHECK(Split(R"($'a\0b\x00\u0000')") == Words{std::string("a\0b\0\0", 5)});
  CHECK(Split(R"($x a$ $"b" $)") == Words{"$x", "a$", "b", "$"});
  CHECK(Split("a;b&c|d<e>(f){g,h}~`!") == Words{"a;b&c|d<e>(f){g,h}~`!"});
}

TEST_CASE("Every byte of a word knows whether it was quoted") {
  CHECK(QuotingOf("a*'b*'\"c*\"\\**$'d*'e") == "..qqqqq.qq. ");
  CHECK(QuotingOf("'' $\"*\" $* \"\\*\"") == " q .. qq ");
  CHECK(QuotingOf("\\\xC3\xA9") == "q. ");
}

TEST_CASE("What is not closed or not text is refused with its column") {
  CHECK(ErrorOf("load cpu 'h.*") == "quote ' at column 10 is not closed");
  CHECK(ErrorOf("load cpu \"h.*\\\"") == "quote \" at column 10 is not closed");
  CHECK(ErrorOf("load cpu a$'h.*\\'") == "quote $' at column 11 is not closed");
  CHECK(ErrorOf("load cpu $\"h") == "quote \" at column 11 is not closed");
  CHECK(ErrorOf("load cpu h\\") == "backslash at column 11 quotes nothing");
  CHECK(ErrorOf("\"a\\") == "quote \" at column 1 is not closed");
  CHECK(ErrorOf(std::string("load\0cpu", 8)) == "NUL byte at column 5");
  CHECK(ErrorOf(std::string("# a\0", 4)) == "NUL byte at column 4");
  CHECK(ErrorOf("\xC3\xA9\xE2\x82\xAC 'x") == "quote ' at column 4 is not closed");
  CHECK(ErrorOf("$'a\\uD800'") == "\\uD800 at column 4 is no character");
  CHECK(ErrorOf("$'\\uDFFF'") == "\\uDFFF at column 3 is no character");
  CHECK(Split("$'\\uD7FF\\uE000'") == Words{"\xED\x9F\xBF\xEE\x80\x80"});
  CHECK(ErrorOf("$'\\U110000'") == "\\U110000 at column 3 is no character");
  CHECK(ErrorOf("'") == "quote ' at column 1 is not closed");
  CHECK(ErrorOf("\\") == "backslash at column 1 quotes nothing");
}

TEST_CASE("A carriage return before the newline is dropped unless it is quoted") {
  CHECK(Split("load cpu x\r") == Words{"load", "cpu", "x"});
  CHECK(Split("load cpu x \r") == Words{"load", "cpu", "x"});
  CHECK(Split("\r") == Words{});
  CHECK(Split("# comment\r") == Words{});
  CHECK(Split("a\rb 'c\r'") == Words{"a\rb", "c\r"});
  CHECK(Split("a\\\r") == Words{"a\r"});
  CHECK(Split("a\r\r") == Words{"a\r"});
}

TEST_CASE("Whatever bash's printf %q and @Q write comes back as it was") {
  std::string script = "names=(";
  for (const std::string& name : StrangeNames()) {
    script += " '";
    for (const char c : name) script += c == '\'' ? std::string("'\\''") : std::string(1, c);
    script += '\'';
  }
  script += ")\nprintf '%q\\0' \"${names[@]}\"\nprintf '%s\\0' \"${names[@]@Q}\"\n";
  const auto printed = RunBash(script);
  if (!printed) {
    WARN("no bash here");
    return;
  }
  const Words quoted = Cut(*printed, '\0');
  REQUIRE(quoted.size() == 2 * StrangeNames().size());
  for (std::size_t i = 0; i < quoted.size(); ++i) {
    INFO(quoted[i]);
    CHECK(Split("load cpu " + quoted[i]) ==
          Words{"load", "cpu", StrangeNames()[i % StrangeNames().size()]});
  }
}

TEST_CASE("Random lines are split into the words that bash sees") {
  LineMaker maker;
  std::vector<std::string> lines;
  std::string script = "set -f\nshow() { printf '%s\\0' \"$#\" \"$@\"; }\n";
  for (int i = 0; i < 5000; ++i) {
    lines.push_back(maker.Line());
    script += "show " + lines.back() + "\n";
  }
  const auto printed = RunBash(script);
  if (!printed) {
    WARN("no bash here");
    return;
  }
  const Words expected = Cut(*printed, '\0');
  Words actual;
  for (const std::string& line : lines) {
    const Words words = Split(line);
    actual.push_back(std::to_string(words.size()));
    actual.insert(actual.end(), words.begin(), words.end());
    const std::size_t at = actual.size() - words.size() - 1;
    for (std::size_t i = at; i < actual.size(); ++i) {
      INFO("line " << line);
      REQUIRE(i < expected.size());
      REQUIRE(actual[i] == expected[i]);
    }
  }
  CHECK(actual.size() == expected.size());
}

}  // namespace safetensorfs

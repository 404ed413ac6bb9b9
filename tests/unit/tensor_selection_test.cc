#include "core/control/tensor_selection.h"

#include <cerrno>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/control/control_command.h"
#include "core/format/file_name.h"
#include "tests/catch.h"

namespace safetensorfs {
namespace {

using Names = std::vector<std::string>;

TensorIndex IndexOf(const Names& names) {
  Header header;
  for (const std::string& name : names) {
    TensorInfo tensor = {};
    tensor.name_offset = header.names.size() & 0xFFFFFFFF;
    tensor.name_size = name.size() & 0xFFFFFF;
    tensor.dtype = Dtype::kU8;
    header.names += name;
    header.tensors.push_back(tensor);
  }
  TensorIndex index;
  index.Add(0, std::move(header));
  index.Finish();
  return index;
}

// The patterns of `load cpu WORDS`.
std::vector<Glob> Patterns(const std::string& words) {
  return ParseCommand("load cpu " + words)->patterns;
}

Names NamesOf(const TensorIndex& index, const std::vector<std::uint32_t>& tensors) {
  Names names;
  for (const std::uint32_t tensor : tensors) names.emplace_back(index.name(tensor));
  return names;
}

Names Select(const TensorIndex& index, const std::string& words, const SelectionScope& scope = {}) {
  return NamesOf(index, TensorSelector(index).Select(Patterns(words), scope));
}

std::string ErrorOf(const TensorIndex& index, const std::string& words,
                    const SelectionScope& scope = {}) {
  try {
    TensorSelector(index).Select(Patterns(words), scope);
  } catch (const Error& error) {
    CHECK(error.code() == ENOENT);
    return error.what();
  }
  return "none";
}

// Selects and counts how often the selector asked whether to go on.
std::uint64_t ChecksOf(const TensorSelector& selector, const std::vector<Glob>& patterns,
                       std::size_t expected) {
  std::uint64_t checks = 0;
  SelectionScope scope;
  scope.cancelled = [&checks] { return ++checks > 10'000; };
  CHECK(selector.Select(patterns, scope).size() == expected);
  return checks;
}

}  // namespace

TEST_CASE("Patterns select each tensor once, in the order of the index") {
  const TensorIndex index = IndexOf({"wte", "h.0.w", "h.0.b", "h.1.w", "h.10.w"});
  CHECK(Select(index, "'h.1.w' wte wte h.0.*") == Names{"wte", "h.0.w", "h.0.b", "h.1.w"});
  CHECK(Select(index, "*").size() == 5);
  CHECK(Select(index, "h.?.w") == Names{"h.0.w", "h.1.w"});
  CHECK(Select(index, "h.[!0]*") == Names{"h.1.w", "h.10.w"});
  CHECK(Select(index, "*.b *.w") == Names{"h.0.w", "h.0.b", "h.1.w", "h.10.w"});
  CHECK(TensorSelector(index).Select({}).size() == 5);
}

TEST_CASE("A pattern that equals a name is that tensor, glob characters and all") {
  const TensorIndex index = IndexOf({"h.*", "h.0", "h.[0]", "?"});
  CHECK(Select(index, "h.*") == Names{"h.*"});
  CHECK(Select(index, "h.[0]") == Names{"h.[0]"});
  CHECK(Select(index, "?") == Names{"?"});
  CHECK(Select(index, "h.**") == Names{"h.*", "h.0", "h.[0]"});
  CHECK(ErrorOf(index, "'h.?'") == "no tensor matches \"h.?\"");
}

TEST_CASE("File names select as tensor names do, since a shell expands globs to them") {
  const std::string nul("a\0b", 3);
  const std::string longest(300, 'x');
  const TensorIndex index = IndexOf({"a/b", "a/c", ".hidden", "", nul, longest, "plain"});
  CHECK(Select(index, "a%2Fb") == Names{"a/b"});
  CHECK(Select(index, "%empty %2Ehidden a%00b") == Names{".hidden", "", nul});
  CHECK(Select(index, ShortenedName(longest, 0)) == Names{longest});
  CHECK(Select(index, "a%2F*") == Names{"a/b", "a/c"});
  CHECK(Select(index, "*%~*") == Names{longest});
  CHECK(Select(index, "%*") == Names{".hidden", ""});
  CHECK(Select(index, "a/* ''") == Names{"a/b", "a/c", ""});
  CHECK(Select(index, "$'a\\0b'") == Names{nul});
  CHECK(Select(index, "*") == NamesOf(index, TensorSelector(index).Select({})));
}

TEST_CASE("A tensor's name goes before another's file name") {
  const TensorIndex index = IndexOf({"a/b", "a%2Fb"});
  CHECK(Select(index, "a%2Fb") == Names{"a%2Fb"});
  CHECK(Select(index, "a%252Fb") == Names{"a%2Fb"});
  CHECK(Select(index, "a%2F[b]") == Names{"a/b", "a%2Fb"});
}

TEST_CASE("Patterns without a match are named, three at most, and counted") {
  const TensorIndex index = IndexOf({"a", "b"});
  CHECK(ErrorOf(index, "x") == "no tensor matches \"x\"");
  CHECK(ErrorOf(index, "a x* x* b") == "no tensor matches \"x*\"");
  CHECK(ErrorOf(index, "a x 'y\n' b") == "no tensor matches these 2 patterns: \"x\", \"y\\n\"");
  CHECK(ErrorOf(index, "x y z") == "no tensor matches these 3 patterns: \"x\", \"y\", \"z\"");
  CHECK(ErrorOf(index, "x y z b q") ==
        "no tensor matches these 4 patterns: \"x\", \"y\", \"z\", ...");
  CHECK(ErrorOf(IndexOf({}), "*") == "no tensor matches \"*\"");
}

TEST_CASE("Within a scope a pattern means what it always means, and must mean something there") {
  const TensorIndex index = IndexOf({"a/b", "a%2Fb", "h.0", "h.1", "h.2"});
  const auto within = [&index](const std::set<std::string>& names) {
    SelectionScope scope;
    scope.contains = [&index, names](std::uint32_t tensor) {
      return names.count(std::string(index.name(tensor))) > 0;
    };
    scope.which = "loaded on cpu";
    return scope;
  };
  CHECK(Select(index, "h.*", within({"h.1", "a/b"})) == Names{"h.1"});
  CHECK(NamesOf(index, TensorSelector(index).Select({}, within({"h.1", "a/b"}))) ==
        Names{"a/b", "h.1"});
  CHECK(TensorSelector(index).Select({}, within({})).empty());
  CHECK(ErrorOf(index, "h.0", within({"h.1"})) == "no tensor loaded on cpu matches \"h.0\"");
  CHECK(ErrorOf(index, "h.* *.2", within({"h.1"})) == "no tensor loaded on cpu matches \"*.2\"");
  CHECK(ErrorOf(index, "a%2Fb", within({"a/b"})) == "no tensor loaded on cpu matches \"a%2Fb\"");
  CHECK(ErrorOf(index, "h.0 h.2", within({})) ==
        "no tensor loaded on cpu matches these 2 patterns: \"h.0\", \"h.2\"");
}

TEST_CASE("Sorted or not, the same tensors are found") {
  std::mt19937 random(11);
  const Names letters = {"a", "b", ".", "/", "%", "\xC3\xA9"};
  std::set<std::string> distinct;
  while (distinct.size() < 2000) {
    std::string name;
    for (std::size_t size = random() % 8; size > 0; --size) name += letters[random() % 6];
    distinct.insert(name + (random() % 50 == 0 ? std::string(300, 'a') : ""));
  }
  const TensorIndex index = IndexOf(Names(distinct.begin(), distinct.end()));
  const TensorSelector selector(index);
  const Names pieces = {"a", "b", ".", "/", "%2F", "%2E", "*", "*", "?", "[ab]", "\xC3\xA9"};
  for (int i = 0; i < 1000; ++i) {
    std::string text;
    for (std::size_t size = 1 + random() % 5; size > 0; --size) {
      text += pieces[random() % pieces.size()];
    }
    INFO(text);
    const std::vector<Glob> patterns = {Glob(text)};
    std::vector<std::uint32_t> expected;
    if (auto named = index.FindName(text)) {
      expected = {*named};
    } else if (auto file = index.FindFile(text)) {
      expected = {*file};
    } else {
      for (std::uint32_t t = 0; t < index.size(); ++t) {
        if (patterns[0].Matches(index.name(t)) || patterns[0].Matches(index.FileName(t))) {
          expected.push_back(t);
        }
      }
    }
    std::vector<std::uint32_t> selected;
    try {
      selected = selector.Select(patterns);
    } catch (const Error&) {
    }
    CHECK(selected == expected);
  }
}

TEST_CASE("100,000 patterns over 100,000 names do not try each on each") {
  // File names that differ from the names double the work, and are slow in a debug build.
  const bool slashes = GENERATE(false, true);
  const std::uint32_t count = slashes ? 20'000 : 100'000;
  INFO(slashes);
  Names names;
  std::string literals, prefixes, suffixes, both;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::string number = std::to_string(i);
    names.push_back((slashes ? "h/" : "h.") + number + ".weight." + number);
    literals += " " + names.back();
    prefixes += slashes ? " h%2F" + number + ".*" : " h." + number + ".*";
    suffixes += " *.weight." + number;
    both += " h?" + number + ".[w]*." + number;
  }
  const TensorIndex index = IndexOf(names);
  CHECK(TensorSelector(index).Select(Patterns(literals)).size() == count);
  // Each list of names is read 16 times before it pays to sort; no pattern has more than a few
  // candidates then.
  const std::uint64_t few = 2 * (16 * std::uint64_t{count} + 10 * count) / kNamesPerCheck;
  CHECK(ChecksOf(TensorSelector(index), Patterns(prefixes), count) < few);
  CHECK(ChecksOf(TensorSelector(index), Patterns(suffixes), count) < few);
  CHECK(ChecksOf(TensorSelector(index), Patterns(both), count) < few);
}

TEST_CASE("Equal patterns are matched once") {
  Names names;
  for (int i = 0; i < 100'000; ++i) names.push_back("h." + std::to_string(i));
  const TensorIndex index = IndexOf(names);
  std::string stars;
  for (int i = 0; i < 100'000; ++i) stars += " * h*";
  CHECK(ChecksOf(TensorSelector(index), Patterns(stars), names.size()) < 100);
}

TEST_CASE("A script of 100,000 lines sorts once for all of them") {
  Names names;
  for (int i = 0; i < 100'000; ++i) names.push_back("h." + std::to_string(i) + ".w");
  const TensorIndex index = IndexOf(names);
  const TensorSelector selector(index);
  std::size_t selected = 0;
  for (int i = 0; i < 20'000; ++i) {
    selected += selector.Select(Patterns("h." + std::to_string(i) + ".*")).size();
  }
  CHECK(selected == 20'000);
}

TEST_CASE("A long selection can be cancelled") {
  Names names;
  for (int i = 0; i < 10'000; ++i) names.push_back("h." + std::to_string(i));
  const TensorIndex index = IndexOf(names);
  SelectionScope scope;
  scope.cancelled = [] { return true; };
  try {
    TensorSelector(index).Select(Patterns("x* *"), scope);
    FAIL("not cancelled");
  } catch (const Error& error) {
    CHECK(error.code() == EINTR);
    CHECK(std::string(error.what()) == "cancelled while matching \"x*\"");
  }
  CHECK(TensorSelector(index).Select(Patterns("h.1"), scope).size() == 1);
}

TEST_CASE("Threads may select at once") {
  Names names;
  for (int i = 0; i < 2000; ++i) names.push_back("h/" + std::to_string(i));
  const TensorIndex index = IndexOf(names);
  const TensorSelector selector(index);
  std::atomic<std::size_t> selected = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        const std::string number = std::to_string(i);
        const std::vector<Glob> patterns = {Glob("h?" + number), Glob("h%2F" + number + "*")};
        selected += selector.Select(patterns).size() > 0 ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(selected == 800);
}

}  // namespace safetensorfs

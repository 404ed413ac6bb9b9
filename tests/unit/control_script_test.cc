#include "core/control/control_script.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/control/control_command.h"
#include "tests/catch.h"

namespace safetensorfs {
namespace {

using Lines = std::vector<std::string>;

// Comparisons of long scripts stand in double parentheses, which keeps a failure from printing
// them.

// The lines of a script that is written in pieces of `size` bytes and closed.
Lines WriteCut(const std::string& script, std::size_t size) {
  ScriptBuffer buffer;
  Lines lines;
  for (std::size_t at = 0; at < script.size(); at += size) {
    const Lines some = buffer.Write(std::string_view(script).substr(at, size));
    lines.insert(lines.end(), some.begin(), some.end());
  }
  if (auto last = buffer.Close()) lines.push_back(*last);
  return lines;
}

Lines NumberedLines(std::size_t bytes) {
  Lines lines;
  for (std::size_t size = 0; size < bytes; size += lines.back().size() + 1) {
    lines.push_back("load cpu h." + std::to_string(lines.size()) + ".*");
  }
  return lines;
}

std::string Joined(const Lines& lines) {
  std::string script;
  for (const std::string& line : lines) script += line + "\n";
  return script;
}

}  // namespace

TEST_CASE("A write is lines, and a last one without a newline counts") {
  ScriptBuffer buffer;
  CHECK(buffer.Write("help\n") == Lines{"help"});
  CHECK(buffer.Write("load cpu a\nload cpu b") == Lines{"load cpu a", "load cpu b"});
  CHECK(buffer.Write("help") == Lines{"help"});
  CHECK(buffer.Write("\n\nhelp\r\n") == Lines{"", "", "help\r"});
  CHECK(buffer.Write("") == Lines{});
  CHECK_FALSE(buffer.Close());
}

TEST_CASE("Quotes do not carry a line on") {
  ScriptBuffer buffer;
  CHECK(buffer.Write("load cpu 'a\nb'\nload cpu $'a\nb' \"\n\" x\\\ny\n") ==
        Lines{"load cpu 'a", "b'", "load cpu $'a", "b' \"", "\" x\\", "y"});
}

TEST_CASE("What a full buffer cut off waits for the next write") {
  for (const std::size_t size : {std::size_t{512}, std::size_t{4096}, std::size_t{8192},
                                 std::size_t{65'536}, std::size_t{1} << 20}) {
    INFO(size);
    const Lines lines = NumberedLines(3 * size + 100);
    CHECK((WriteCut(Joined(lines), size) == lines));
    ScriptBuffer buffer;
    const std::string half(size, 'x');
    CHECK(buffer.Write(half) == Lines{});
    CHECK(buffer.Write("") == Lines{});
    CHECK(buffer.Write("y\nz\n") == Lines{half + "y", "z"});
    CHECK_FALSE(buffer.Close());
  }
}

TEST_CASE("A write of another length, or one that ends in a newline, leaves nothing to wait") {
  ScriptBuffer buffer;
  CHECK(buffer.Write(std::string(511, 'x')).size() == 1);
  CHECK(buffer.Write(std::string(513, 'x')).size() == 1);
  CHECK(buffer.Write(std::string(511, 'x') + "\n") == Lines{std::string(511, 'x')});
  CHECK_FALSE(buffer.Close());
}

TEST_CASE("What waits is the last line once the descriptor is closed") {
  ScriptBuffer buffer;
  const std::string line = "load cpu " + std::string(512 - 14, 'x');
  CHECK(buffer.Write("help\n" + line) == Lines{"help"});
  CHECK(buffer.Close() == line);
  CHECK_FALSE(buffer.Close());
}

TEST_CASE("A newline that begins a write ends the line that waits") {
  ScriptBuffer buffer;
  const std::string line(512, 'x');
  CHECK(buffer.Write(line) == Lines{});
  CHECK(buffer.Write("\nhelp\n") == Lines{line, "help"});
  CHECK(buffer.Write(line) == Lines{});
  CHECK(buffer.Write("\n" + line.substr(1)) == Lines{line});
  CHECK(buffer.Close() == line.substr(1));
}

TEST_CASE("A script of a million bytes is the same lines however it is cut") {
  const Lines lines = NumberedLines(1'000'000);
  const std::string script = Joined(lines);
  for (const std::size_t size : {std::size_t{512}, std::size_t{8192}, script.size()}) {
    INFO(size);
    CHECK((WriteCut(script, size) == lines));
  }
  for (const std::string& line : lines) {
    if (!ParseCommand(line)) FAIL(line);
  }
}

TEST_CASE("CRLF, NUL and a missing last newline come through to the parser") {
  const std::string script("help\r\nlo\0ad\r\n# end", 18);
  const Lines lines = WriteCut(script, script.size());
  CHECK(lines == Lines{"help\r", std::string("lo\0ad\r", 6), "# end"});
  CHECK(ParseCommand(lines[0])->verb == Verb::kHelp);
  CHECK_THROWS_AS(ParseCommand(lines[1]), Error);
}

TEST_CASE("One line may come in many writes, up to a limit") {
  std::string line = "load cpu";
  while (line.size() < 4'000'000) line += " h." + std::to_string(line.size());
  CHECK((WriteCut(line + "\n", 512) == Lines{line}));

  ScriptBuffer buffer;
  const std::string block(std::size_t{1} << 20, 'x');
  for (std::size_t size = 0; size < ScriptBuffer::kMaxWaiting; size += block.size()) {
    CHECK(buffer.Write(block).empty());
  }
  try {
    buffer.Write("x\n");
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == EINVAL);
    CHECK(
        std::string(error.what()) ==
        "a line of more than 16,777,216 bytes, in several writes: split it into several commands");
  }
  CHECK_FALSE(buffer.Close());
  CHECK(buffer.Write(std::string(ScriptBuffer::kMaxWaiting + 1, 'x') + "\nhelp\n").size() == 2);
}

TEST_CASE("What the kernel has cut of a long write waits, wherever its buffer began") {
  for (const std::size_t before : {0u, 1u, 1000u, 4095u}) {
    std::string text = "load cpu";
    while (text.size() < 3'000'000) text += " wte.weight";
    ScriptBuffer script;
    std::string_view left(text);
    std::vector<std::string> lines;
    for (std::size_t size = (1 << 20) - before; !left.empty(); size = 1 << 20) {
      for (std::string& line : script.Write(left.substr(0, size))) lines.push_back(std::move(line));
      left.remove_prefix(std::min(size, left.size()));
    }
    CHECK((lines == std::vector{text}));
  }
}

}  // namespace safetensorfs

#include "core/control/control_command.h"

#include <cerrno>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "tests/catch.h"

namespace safetensorfs {
namespace {

std::string ErrorOf(std::string_view line) {
  try {
    ParseCommand(line);
  } catch (const Error& error) {
    CHECK(error.code() == EINVAL);
    return error.what();
  }
  return "none";
}

std::vector<std::string> Texts(const Command& command) {
  std::vector<std::string> texts;
  for (const Glob& pattern : command.patterns) texts.push_back(pattern.text());
  return texts;
}

}  // namespace

TEST_CASE("A line is a verb, its devices and its patterns") {
  const auto load = ParseCommand("load cpu,cuda:0,GPU-3f2a h.* 'wte weight' \"*\"\r");
  REQUIRE(load);
  CHECK(load->verb == Verb::kLoad);
  CHECK(load->devices == std::vector<std::string>{"cpu", "cuda:0", "GPU-3f2a"});
  CHECK(Texts(*load) == std::vector<std::string>{"h.*", "wte weight", "*"});
  CHECK_FALSE(load->patterns[0].IsLiteral());
  CHECK(load->patterns[1].IsLiteral());
  CHECK(load->patterns[2].IsLiteral());

  const auto unload = ParseCommand("unload cuda:1 x");
  REQUIRE(unload);
  CHECK(unload->verb == Verb::kUnload);
  CHECK(unload->devices == std::vector<std::string>{"cuda:1"});
  CHECK(Texts(*unload) == std::vector<std::string>{"x"});

  const auto verify = ParseCommand("verify cpu");
  REQUIRE(verify);
  CHECK(verify->verb == Verb::kVerify);
  CHECK(verify->patterns.empty());
  CHECK(Texts(*ParseCommand("verify cpu a b")) == std::vector<std::string>{"a", "b"});

  const auto help = ParseCommand("  help # please");
  REQUIRE(help);
  CHECK(help->verb == Verb::kHelp);
  CHECK(help->devices.empty());
  CHECK(ParseCommand("'lo'ad cpu ''")->patterns[0].text().empty());
}

TEST_CASE("Blank lines and comments are no commands") {
  for (const std::string line : {"", "   ", "\t", "\r", "# load cpu x", "  # 'not closed"}) {
    INFO(line);
    CHECK_FALSE(ParseCommand(line));
  }
}

TEST_CASE("A line that is no command says what is wrong with which word") {
  CHECK(ErrorOf("lod cpu x") == "unknown command \"lod\", known are load, unload, verify, help");
  CHECK(ErrorOf("LOAD cpu x") == "unknown command \"LOAD\", known are load, unload, verify, help");
  CHECK(ErrorOf("'a\nb'") == "unknown command \"a\\nb\", known are load, unload, verify, help");
  CHECK(ErrorOf("load") == "load: no device; usage: load DEVICE[,DEVICE...] PATTERN...");
  CHECK(ErrorOf("load cpu") ==
        "load: no pattern after device \"cpu\"; usage: load DEVICE[,DEVICE...] PATTERN...");
  CHECK(ErrorOf("load cpu # all") ==
        "load: no pattern after device \"cpu\"; usage: load DEVICE[,DEVICE...] PATTERN...");
  CHECK(ErrorOf("unload") == "unload: no device; usage: unload DEVICE PATTERN...");
  CHECK(ErrorOf("unload cpu") ==
        "unload: no pattern after device \"cpu\"; usage: unload DEVICE PATTERN...");
  CHECK(ErrorOf("verify") == "verify: no device; usage: verify DEVICE [PATTERN...]");
  CHECK(ErrorOf("help me") == "help: takes no arguments, got \"me\"; usage: help");
  CHECK(ErrorOf("load cpu 'x") == "quote ' at column 10 is not closed");
}

TEST_CASE("Devices are separated by commas, named once each, and load alone takes several") {
  const std::string usage = "; usage: load DEVICE[,DEVICE...] PATTERN...";
  CHECK(ErrorOf("load '' x") == "load: empty device \"\"" + usage);
  CHECK(ErrorOf("load cpu, x") == "load: empty device in \"cpu,\"" + usage);
  CHECK(ErrorOf("load ,cpu x") == "load: empty device in \",cpu\"" + usage);
  CHECK(ErrorOf("load cpu,,cuda:0 x") == "load: empty device in \"cpu,,cuda:0\"" + usage);
  CHECK(ErrorOf("load cpu,cuda:0,cpu x") ==
        "load: device \"cpu\" twice in \"cpu,cuda:0,cpu\"" + usage);
  CHECK(ErrorOf("unload cpu,cuda:0 x") ==
        "unload: takes one device, \"cpu,cuda:0\" names 2; usage: unload DEVICE PATTERN...");
  CHECK(
      ErrorOf("verify cpu,cuda:0,cuda:1") ==
      "verify: takes one device, \"cpu,cuda:0,cuda:1\" names 3; usage: verify DEVICE [PATTERN...]");
}

TEST_CASE("The help shows every verb as errors show it") {
  const std::string_view help = HelpText();
  CHECK(help.ends_with('\n'));
  for (const Verb verb : {Verb::kLoad, Verb::kUnload, Verb::kVerify, Verb::kHelp}) {
    const std::string name(VerbName(verb));
    INFO(name);
    CHECK((help.starts_with(name + " ") || help.find("\n" + name + " ") != help.npos));
  }
}

TEST_CASE("A line may hold 100,000 patterns and 100,000 devices") {
  std::string line = "load d";
  for (int i = 0; i < 100'000; ++i) line += ",d" + std::to_string(i);
  for (int i = 0; i < 100'000; ++i) line += " h." + std::to_string(i) + ".*";
  const auto command = ParseCommand(line);
  REQUIRE(command);
  CHECK(command->devices.size() == 100'001);
  CHECK(command->patterns.size() == 100'000);
  CHECK(command->patterns.back().text() == "h.99999.*");
}

}  // namespace safetensorfs

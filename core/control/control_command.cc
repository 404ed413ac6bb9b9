#include "core/control/control_command.h"

#include <algorithm>
#include <cerrno>
#include <span>
#include <unordered_set>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/control/control_words.h"

namespace safetensorfs {
namespace {

struct Grammar {
  Verb verb;
  std::string_view name;
  std::string_view usage;
  bool takes_device;
  bool several_devices;
  bool needs_pattern;
};

constexpr Grammar kGrammars[] = {
    {Verb::kLoad, "load", "load DEVICE[,DEVICE...] PATTERN...", true, true, true},
    {Verb::kUnload, "unload", "unload DEVICE PATTERN...", true, false, true},
    {Verb::kVerify, "verify", "verify DEVICE [PATTERN...]", true, false, false},
    {Verb::kHelp, "help", "help", false, false, false},
};

constexpr std::string_view kHelp =
    R"(load   DEVICE[,DEVICE...] PATTERN...  put tensors on devices, skip those that are there
unload DEVICE PATTERN...              take tensors off a device
verify DEVICE [PATTERN...]            compare what is on a device with the source
help                                  print this

DEVICE   cpu, cuda:0, GPU-<uuid> or MIG-<uuid>
PATTERN  a tensor, by its name or its file name, or a glob: * any text, dots too;
         ? one character; [a-z] one of these; [!a-z] one of the others
One command a line, words quoted as in bash: 'text' "text" \c $'text'. # begins a comment.
)";

[[noreturn]] void Fail(const Grammar& grammar, const std::string& what) {
  throw Error(EINVAL,
              std::string(grammar.name) + ": " + what + "; usage: " + std::string(grammar.usage));
}

const Grammar& GrammarOf(const std::string& word) {
  for (const Grammar& grammar : kGrammars) {
    if (grammar.name == word) return grammar;
  }
  throw Error(EINVAL, "unknown command " + Quoted(word) + ", known are load, unload, verify, help");
}

std::vector<std::string> ParseDevices(const Grammar& grammar, const std::string& word) {
  std::vector<std::string> devices;
  std::unordered_set<std::string_view> seen;
  const std::string_view list = word;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string_view device = list.substr(begin, end - begin);
    if (device.empty()) {
      Fail(grammar, (list.empty() ? "empty device " : "empty device in ") + Quoted(list));
    }
    if (!seen.insert(device).second) {
      Fail(grammar, "device " + Quoted(device) + " twice in " + Quoted(list));
    }
    devices.emplace_back(device);
    begin = end + 1;
  }
  if (devices.size() > 1 && !grammar.several_devices) {
    Fail(grammar, "takes one device, " + Quoted(list) + " names " + Grouped(devices.size()));
  }
  return devices;
}

}  // namespace

std::string_view VerbName(Verb verb) {
  for (const Grammar& grammar : kGrammars) {
    if (grammar.verb == verb) return grammar.name;
  }
  return {};
}

std::optional<Command> ParseCommand(std::string_view line) {
  std::vector<ControlWord> words = SplitWords(line);
  if (words.empty()) return std::nullopt;
  const Grammar& grammar = GrammarOf(words[0].text);
  Command command;
  command.verb = grammar.verb;
  if (!grammar.takes_device) {
    if (words.size() > 1) Fail(grammar, "takes no arguments, got " + Quoted(words[1].text));
    return command;
  }
  if (words.size() == 1) Fail(grammar, "no device");
  command.devices = ParseDevices(grammar, words[1].text);
  if (words.size() == 2 && grammar.needs_pattern) {
    Fail(grammar, "no pattern after device " + Quoted(words[1].text));
  }
  command.patterns.reserve(words.size() - 2);
  for (ControlWord& word : std::span(words).subspan(2)) {
    command.patterns.emplace_back(std::move(word.text), word.quoted);
  }
  return command;
}

std::string_view HelpText() { return kHelp; }

}  // namespace safetensorfs

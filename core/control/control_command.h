#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/control/glob.h"

namespace safetensorfs {

enum class Verb { kLoad, kUnload, kVerify, kHelp };

/// As the language spells it: "load".
std::string_view VerbName(Verb verb);

/// One line of the control language.
struct Command {
  Verb verb = Verb::kHelp;
  // As written, not empty and all different; whether they exist, and whether two of them are one
  // device under two names, is not known here. kLoad: one or more; kUnload, kVerify: one.
  std::vector<std::string> devices;
  // kLoad, kUnload: one or more; kVerify: none means all that is loaded.
  std::vector<Glob> patterns;
};

/// Reads a line, see HelpText() and SplitWords. Nothing for a blank line or a comment. Throws Error
/// (EINVAL) that names the verb, what is wrong and the offending word. Thread-safe.
std::optional<Command> ParseCommand(std::string_view line);

/// The language in a few lines, for the report of `help`; ends in a newline.
std::string_view HelpText();

}  // namespace safetensorfs

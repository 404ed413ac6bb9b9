#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace safetensorfs {

/// Exit statuses of the program beside 0 and those of Fault.
inline constexpr int kExitUsage = 1;
inline constexpr int kExitMount = 2;

/// The command line, parsed once.
struct Options {
  enum class Action { kMount, kCheck, kHelp, kVersion };

  Action action = Action::kMount;
  std::string source;
  std::string mountpoint;
  bool foreground = false;
  bool debug = false;
  bool allow_other = false;
  bool allow_root = false;
  bool auto_unmount = false;
  std::optional<uid_t> uid;
  std::optional<gid_t> gid;
  mode_t umask = 0;
  std::optional<std::string> fsname;
  unsigned max_threads = 0;  // 0: libfuse's default
  /// Words for mount(2) or fusermount3, such as "ro" or "noexec".
  std::vector<std::string> kernel_options;
};

/// Parses the arguments after the program's name. Options may stand anywhere before "--". Throws
/// Error (EINVAL) that names the argument.
Options ParseOptions(std::span<const char* const> arguments);

/// The usage line, without newline.
std::string UsageLine();
/// What --help prints.
std::string ProgramHelp();

}  // namespace safetensorfs

#include "fs/options.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <limits>
#include <string_view>

#include "core/base/error.h"
#include "core/base/text.h"

namespace safetensorfs {
namespace {

// What mount(8) and fstab pass and this file system has no use for.
constexpr std::array<std::string_view, 25> kIgnoredWords = {
    "nosymfollow",  // there are no symbolic links here

    "rw",          "defaults",   "auto",        "noauto",        "user",     "nouser",
    "users",       "nousers",    "owner",       "group",         "nofail",   "_netdev",
    "relatime",    "norelatime", "strictatime", "nostrictatime", "diratime", "nodiratime",
    "lazytime",    "nolazytime", "iversion",    "noiversion",    "silent",   "loud"};
constexpr std::array<std::string_view, 3> kIgnoredPrefixes = {"x-", "X-", "comment="};

// What libfuse or the kernel takes.
constexpr std::array<std::string_view, 12> kKernelWords = {"ro",     "dev",   "nodev",   "suid",
                                                           "nosuid", "exec",  "noexec",  "sync",
                                                           "async",  "atime", "noatime", "dirsync"};

[[noreturn]] void Fail(const std::string& text) { throw Error(EINVAL, text); }

unsigned ParseNumber(std::string_view option, std::string_view value, int base, unsigned max) {
  unsigned number = 0;
  const auto [end, error] =
      std::from_chars(value.data(), value.data() + value.size(), number, base);
  if (value.empty() || error != std::errc() || end != value.data() + value.size() || number > max) {
    Fail("-o " + std::string(option) + ": " + Quoted(value) + " is not a number in base " +
         std::to_string(base) + " from 0 to " + std::to_string(max));
  }
  return number;
}

// Splits at commas; a backslash takes the meaning from the character after it.
std::vector<std::string> SplitWords(std::string_view text) {
  std::vector<std::string> words(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ',') {
      words.emplace_back();
    } else {
      if (text[i] == '\\' && i + 1 < text.size()) ++i;
      words.back() += text[i];
    }
  }
  std::erase(words, "");
  return words;
}

void ParseWord(const std::string& word, Options& options) {
  constexpr unsigned kMaxId = std::numeric_limits<uid_t>::max() - 1;
  const std::size_t equals = word.find('=');
  const std::string name = word.substr(0, equals);
  const std::string value = equals == word.npos ? "" : word.substr(equals + 1);
  if (equals != word.npos) {
    if (name == "uid") {
      options.uid = ParseNumber(name, value, 10, kMaxId);
      return;
    }
    if (name == "gid") {
      options.gid = ParseNumber(name, value, 10, kMaxId);
      return;
    }
    if (name == "umask") {
      options.umask = ParseNumber(name, value, 8, 0777);
      return;
    }
    if (name == "max_threads") {
      options.max_threads = ParseNumber(name, value, 10, 100'000);
      if (options.max_threads == 0) Fail("-o max_threads: must be at least 1");
      return;
    }
    if (name == "fsname") {
      options.fsname = value;
      return;
    }
  }
  if (word == "allow_other") {
    options.allow_other = true;
  } else if (word == "allow_root") {
    options.allow_root = true;
  } else if (word == "auto_unmount") {
    options.auto_unmount = true;
  } else if (std::ranges::count(kKernelWords, word) > 0) {
    options.kernel_options.push_back(word);
  } else if (std::ranges::count(kIgnoredWords, word) == 0 &&
             std::ranges::none_of(kIgnoredPrefixes, [&](std::string_view prefix) {
               return word.starts_with(prefix);
             })) {
    Fail("unknown option -o " + Printable(word));
  }
}

void TakeOperands(const std::vector<std::string>& operands, Options& options) {
  const bool is_check = options.action == Options::Action::kCheck;
  const std::size_t wanted = is_check ? 1 : 2;
  if (operands.size() < wanted) {
    Fail(operands.empty() ? "SOURCE is missing" : "MOUNTPOINT is missing");
  }
  if (operands.size() > wanted) Fail("unexpected argument " + Quoted(operands[wanted]));
  options.source = operands[0];
  if (!is_check) options.mountpoint = operands[1];
  if (options.allow_other && options.allow_root)
    Fail("-o allow_other and allow_root exclude each other");
}

}  // namespace

Options ParseOptions(std::span<const char* const> arguments) {
  Options options;
  std::vector<std::string> operands;
  bool is_after_dashes = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string argument = arguments[i];
    if (is_after_dashes || argument.size() < 2 || argument[0] != '-') {
      operands.push_back(argument);
    } else if (argument == "--") {
      is_after_dashes = true;
    } else if (argument == "-f") {
      options.foreground = true;
    } else if (argument == "-d") {
      options.debug = options.foreground = true;
    } else if (argument == "--check") {
      options.action = Options::Action::kCheck;
    } else if (argument == "--help" || argument == "-h") {
      options.action = Options::Action::kHelp;
      return options;
    } else if (argument == "--version" || argument == "-V") {
      options.action = Options::Action::kVersion;
      return options;
    } else if (argument.starts_with("-o")) {
      std::string words = argument.substr(2);
      if (words.empty()) {
        if (++i == arguments.size()) Fail("-o needs options after it");
        words = arguments[i];
      }
      for (const std::string& word : SplitWords(words)) ParseWord(word, options);
    } else {
      Fail("unknown option " + Printable(argument));
    }
  }
  TakeOperands(operands, options);
  return options;
}

std::string UsageLine() {
  return "usage: safetensorfs [-f] [-d] [-o OPT[,OPT...]] SOURCE MOUNTPOINT | --check SOURCE | "
         "--help | --version";
}

std::string ProgramHelp() {
  return UsageLine() + R"(

Mounts SOURCE, a safetensors file, an index of shards or a folder, as a directory in which each
tensor is a file.

SOURCE is a safetensors file of any name, a *.safetensors.index.json, a directory, or a
models--ORG--NAME cache folder, which means the snapshot that its refs/main names.

options:
  -f                  stay in the foreground; say READY=1 where NOTIFY_SOCKET is set
  -d                  print every FUSE request to stderr; implies -f
  --check             validate SOURCE and print one line per problem; mount nothing
  --help              print this text
  --version           print the version
  -o allow_other      let other users in
  -o allow_root       let root in
  -o auto_unmount     unmount even if the daemon is killed
  -o ro               have the kernel refuse every write
  -o uid=N            show files as owned by user N
  -o gid=N            show files as owned by group N
  -o umask=M          take the bits of M (octal) off every mode
  -o fsname=NAME      show NAME as the mount's source; default: SOURCE
  -o max_threads=N    serve with at most N threads; default: libfuse's

Words that mount(8) passes and that mean nothing here are accepted: rw, defaults, auto, noauto,
user, users, nofail, _netdev, relatime, x-* and the like.

exit status:
  0   mounted, or SOURCE is valid
  1   usage
  2   cannot mount at MOUNTPOINT
  30  SOURCE cannot be opened or read
  31  SOURCE is not valid
  32  shards are missing or inconsistent
)";
}

}  // namespace safetensorfs

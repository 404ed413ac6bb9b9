#include "fs/options.h"

#include <cerrno>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "tests/catch.h"

namespace safetensorfs {
namespace {

Options Parse(const std::vector<const char*>& arguments) { return ParseOptions(arguments); }

std::string Failure(const std::vector<const char*>& arguments) {
  try {
    ParseOptions(arguments);
  } catch (const Error& error) {
    CHECK(error.code() == EINVAL);
    return error.what();
  }
  return "parsed";
}

}  // namespace

TEST_CASE("Options may stand before, between and after the operands") {
  const Options options = Parse(
      {"-f", "model", "-o", "uid=1000,gid=1001,umask=027", "/mnt", "-oallow_other,ro,noexec"});
  CHECK(options.action == Options::Action::kMount);
  CHECK(options.source == "model");
  CHECK(options.mountpoint == "/mnt");
  CHECK(options.foreground);
  CHECK_FALSE(options.debug);
  CHECK(options.uid == 1000u);
  CHECK(options.gid == 1001u);
  CHECK(options.umask == 027);
  CHECK(options.allow_other);
  CHECK(options.kernel_options == std::vector<std::string>{"ro", "noexec"});
}

TEST_CASE("-d stays in the foreground, and -- ends the options") {
  CHECK(Parse({"-d", "a", "b"}).foreground);
  CHECK(Parse({"--", "-f", "-d"}).source == "-f");
  CHECK(Parse({"--check", "m"}).action == Options::Action::kCheck);
  CHECK(Parse({"--help"}).action == Options::Action::kHelp);
  CHECK(Parse({"--version"}).action == Options::Action::kVersion);
}

TEST_CASE("What mount(8) passes and means nothing here is accepted") {
  const Options options = Parse({"a", "b", "-o",
                                 "rw,defaults,auto,noauto,user,users,nofail,_netdev,relatime,"
                                 "strictatime,nodiratime,lazytime,comment=x,x-systemd.automount"});
  CHECK(options.kernel_options.empty());
}

TEST_CASE("A backslash takes the meaning from a comma") {
  CHECK(Parse({"a", "b", "-o", R"(fsname=x\,y\\z,ro)"}).fsname == R"(x,y\z)");
}

TEST_CASE("What is wrong with the command line is named") {
  CHECK(Failure({}) == "SOURCE is missing");
  CHECK(Failure({"a"}) == "MOUNTPOINT is missing");
  CHECK(Failure({"--check"}) == "SOURCE is missing");
  CHECK(Failure({"a", "b", "c"}) == "unexpected argument \"c\"");
  CHECK(Failure({"-x", "a", "b"}) == "unknown option -x");
  CHECK(Failure({"a", "b", "-o"}) == "-o needs options after it");
  CHECK(Failure({"a", "b", "-o", "sometimes"}) == "unknown option -o sometimes");
  CHECK(Failure({"a", "b", "-o", "uid=nobody"}) ==
        "-o uid: \"nobody\" is not a number in base 10 from 0 to 4294967294");
  CHECK(Failure({"a", "b", "-o", "umask=8"}) ==
        "-o umask: \"8\" is not a number in base 8 from 0 to 511");
  CHECK(Failure({"a", "b", "-o", "max_threads=0"}) == "-o max_threads: must be at least 1");
  CHECK(Failure({"a", "b", "-o", "allow_other,allow_root"}) ==
        "-o allow_other and allow_root exclude each other");
}

}  // namespace safetensorfs

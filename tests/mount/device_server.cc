// The daemon with devices that a test finds for it: DEVICE_SERVER's first argument is the path of a
// socket, the rest is a command line of safetensorfs. Each time that it looks for devices it
// connects to the socket and reads a line: names of devices, or "!" and why there are none. Then
// each line is something that happens to a device, and is answered with a line once it has:
//
//   die NAME REASON     shut NAME     open NAME

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <sstream>
#include <string>
#include <thread>

#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "fs/background.h"
#include "fs/mount.h"
#include "fs/options.h"
#include "tests/unit/test_device.h"

namespace safetensorfs {
namespace {

UniqueFd Connect(const std::string& path) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    ThrowErrno(path, "cannot connect");
  }
  return fd;
}

// Without its newline; nothing at the end.
bool ReadLine(int fd, std::string& line) {
  line.clear();
  for (char c; read(fd, &c, 1) == 1; line += c) {
    if (c == '\n') return true;
  }
  return false;
}

void Happen(const std::map<std::string, TestDevice*>& devices, const std::string& line) {
  std::istringstream words(line);
  std::string verb;
  std::string name;
  std::string rest;
  words >> verb >> name >> std::ws;
  std::getline(words, rest);
  TestDevice& device = *devices.at(name);
  if (verb == "die") device.Die(rest);
  if (verb == "shut") device.Shut();
  if (verb == "open") device.Open();
}

void ServeEvents(UniqueFd fd, const std::map<std::string, TestDevice*>& devices) {
  for (std::string line; ReadLine(fd.get(), line);) {
    Happen(devices, line);
    if (write(fd.get(), "done\n", 5) != 5) return;
  }
}

FoundDevices FindThrough(const std::string& path, const std::stop_token& stop) {
  UniqueFd fd = Connect(path);
  std::string line;
  {
    const std::stop_callback hang_up(stop, [&fd] { shutdown(fd.get(), SHUT_RDWR); });
    if (!ReadLine(fd.get(), line)) return {{}, "the test has ended"};
  }
  if (line.starts_with('!')) return {{}, line.substr(1)};
  FoundDevices found;
  std::map<std::string, TestDevice*> devices;
  std::istringstream names(line);
  for (std::string name; names >> name;) {
    auto device = std::make_unique<TestDevice>(name);
    devices.emplace(name, device.get());
    found.devices.push_back(std::move(device));
  }
  // The test hangs up before the devices go.
  std::thread(ServeEvents, std::move(fd), std::move(devices)).detach();
  return found;
}

}  // namespace
}  // namespace safetensorfs

int main(int argc, char** argv) {
  using namespace safetensorfs;
  try {
    const std::string path = argv[1];
    const Options options = ParseOptions({argv + 2, argv + argc});
    Background background(options.foreground, options.mountpoint);
    if (background.is_parent()) return background.status();
    return Mount(options, background,
                 [path](std::stop_token stop) { return FindThrough(path, stop); });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "device_server: %s\n", error.what());
    return 1;
  }
}

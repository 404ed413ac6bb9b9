#include "tests/gpu_check/session.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <iostream>
#include <optional>
#include <sstream>

#include "core/base/error.h"
#include "core/control/control_command.h"
#include "core/tree/source_tree.h"
#include "gpu/device/cuda_devices.h"
#include "tests/gpu_check/stopwatch.h"

namespace safetensorfs {
namespace {

std::unique_ptr<SourceTree> Open(const std::string& path) {
  Problems problems;
  auto tree = OpenSource(path, problems);
  if (!problems.empty()) throw Error(EINVAL, problems.front().text);
  if (!tree || tree->checkpoints.size() != 1) throw Error(EINVAL, path + ": not one checkpoint");
  return tree;
}

std::string ToHex(const std::string& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

std::string OnOneLine(std::string json) {
  std::erase(json, '\n');
  return json;
}

}  // namespace

Session::Session(const std::string& source, CudaDeviceOptions options)
    : source_(Open(source)), selector_(std::make_unique<TensorSelector>(index())) {
  FoundDevices found = CudaDeviceFinder(std::move(options))({});
  missing_ = found.missing;
  for (auto& device : found.devices) {
    hosts_.push_back(std::make_unique<DeviceHost>(
        std::move(device), *source_,
        [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }));
  }
}

void Session::Run() {
  for (std::string line; std::getline(std::cin, line);) {
    const std::size_t space = line.find(' ');
    const std::uint64_t id = std::stoull(line);
    try {
      Take(id, space != line.npos ? std::string_view(line).substr(space + 1) : "");
    } catch (const Error& error) {
      Reply(id, JsonLine()
                    .Add("error", static_cast<std::uint64_t>(error.code()))
                    .AddText("text", error.what()));
    }
  }
  for (const auto& host : hosts_) host->Stop();
}

void Session::Take(std::uint64_t id, std::string_view text) {
  std::istringstream words{std::string(text)};
  std::string verb;
  std::string device;
  std::string tensor;
  std::uint64_t number = 0;
  words >> verb;
  if (verb == "load" || verb == "unload" || verb == "verify") return Submit(id, text, {});
  if (verb == "buffered") return Submit(id, text.substr(verb.size() + 1), {true});
  if (verb == "devices") {
    std::string devices;
    for (const auto& host : hosts_) devices += (devices.empty() ? "" : ",") + host->InfoText({});
    return Reply(id,
                 JsonLine().AddJson("devices", "[" + devices + "]").AddText("missing", missing_));
  }
  if (verb == "progress" || verb == "cancel") {
    words >> number;
    const RunningJob& running = jobs_.at(number);
    if (verb == "cancel") running.host->Cancel(running.job);
    return Reply(id, JsonLine()
                         .Add("done_nbytes", running.job->progress.done)
                         .Add("total_nbytes", running.job->progress.total));
  }
  words >> device;
  DeviceHost& host = HostAt(device);
  if (verb == "slabs") return Reply(id, JsonLine().AddJson("slabs", Slabs(host)));
  if (verb == "release") {
    words >> number;
    host.loaded().Release(number);
    return Reply(id, JsonLine());
  }
  words >> tensor;
  const LoadedTensors::Instance instance = Find(host, tensor);
  if (verb == "handle") {
    return Reply(id, JsonLine().AddJson("handle", OnOneLine(host.HandleText(instance))));
  }
  if (verb == "lease") {
    return Reply(id, JsonLine().Add("lease", host.Lease(instance, getppid()).value_or(0)));
  }
  if (verb == "read") {
    std::uint64_t nbytes = 0;
    words >> number >> nbytes;
    return Read(id, host, instance, number, nbytes);
  }
  throw Error(EINVAL, "no request " + Quoted(verb));
}

void Session::Submit(std::uint64_t id, std::string_view line, const LoadHints& hints) {
  const auto parsed = ParseCommand(line);
  if (!parsed) throw Error(EINVAL, "no command");
  DeviceHost& host = HostAt(parsed->devices.at(0));
  DeviceCommand command;
  command.verb = parsed->verb;
  command.pid = getppid();
  command.patterns = std::make_shared<const std::vector<Glob>>(parsed->patterns);
  command.selector = selector_.get();
  command.hints = hints;
  const Stopwatch watch;
  jobs_[id] = {&host, host.Submit(command, [this, id, watch](const Outcome& outcome) {
                 Reply(id, JsonLine()
                               .Add("error", static_cast<std::uint64_t>(outcome.error))
                               .AddText("text", outcome.line)
                               .AddSeconds("seconds", watch.seconds()));
               })};
}

std::string Session::Slabs(const DeviceHost& host) const {
  std::string json;
  for (const std::uint64_t number : host.SlabNumbers(0)) {
    const auto instance = host.FindInSlab(0, number);
    if (instance) json += (json.empty() ? "" : ",") + OnOneLine(*host.SlabText(*instance));
  }
  return "[" + json + "]";
}

void Session::Read(std::uint64_t id, DeviceHost& host, const LoadedTensors::Instance& instance,
                   std::uint64_t offset, std::uint64_t nbytes) {
  const Stopwatch watch;
  host.Read(instance, offset, nbytes, [this, id, watch](int error, const Pieces& pieces) {
    const double seconds = watch.seconds();
    std::string bytes;
    pieces.ForEach([&](const Piece& piece) {
      bytes.append(reinterpret_cast<const char*>(piece.memory), piece.size);
    });
    Reply(id, JsonLine()
                  .Add("error", static_cast<std::uint64_t>(error))
                  .AddSeconds("seconds", seconds)
                  .AddText("hex", ToHex(bytes)));
  });
}

void Session::Reply(std::uint64_t id, JsonLine line) {
  line.Add("id", id);
  const std::lock_guard lock(printing_);
  line.Print();
}

DeviceHost& Session::HostAt(std::string_view name) const {
  for (const auto& host : hosts_) {
    if (host->IsCalled(name)) return *host;
  }
  throw Error(ENODEV, "no device " + Quoted(name));
}

LoadedTensors::Instance Session::Find(const DeviceHost& host, std::string_view tensor) const {
  const auto number = index().FindName(tensor);
  const auto instance = number ? host.loaded().Find(0, *number) : std::nullopt;
  if (!instance) throw Error(ENOENT, "tensor " + Quoted(tensor) + " is not loaded");
  return *instance;
}

}  // namespace safetensorfs

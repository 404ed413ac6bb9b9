#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string>

#include "core/control/control_service.h"
#include "tests/unit/temporary_folder.h"
#include "tests/unit/test_device.h"

namespace safetensorfs {

/// A writer that waits. It outlives its request, which the service owns.
struct Writer {
  std::promise<int> replied;
  std::future<int> reply = replied.get_future();
  std::atomic<bool> wants_to_end = false;
  std::atomic<int> looks = 0;
  bool is_killed = false;
  std::promise<void> watched;
  std::function<void()> interrupt;

  int Result() { return reply.get(); }
  bool IsWaiting() { return reply.wait_for(std::chrono::seconds(0)) != std::future_status::ready; }

  /// As the kernel does it: once, whatever the signal was.
  void Interrupt() {
    watched.get_future().wait();
    interrupt();
  }
};

class TestRequest : public ControlRequest {
 public:
  explicit TestRequest(Writer& writer) : writer_(writer) {}
  void Watch(std::function<void()> interrupted) override {
    writer_.interrupt = std::move(interrupted);
    writer_.watched.set_value();
  }
  bool WantsToEnd() override {
    ++writer_.looks;
    return writer_.wants_to_end;
  }
  bool IsKilled() override { return writer_.is_killed; }
  void Reply(int error) override { writer_.replied.set_value(error); }
  pid_t pid() const override { return 4711; }

 private:
  Writer& writer_;
};

/// A mounted file of tensors h.0 to h.3, with two test devices and those that a finder finds.
struct ControlFixture {
  explicit ControlFixture(DeviceFinder finder = {})
      : devices(*source, std::move(finder),
                [this](const std::string& line) { log += line + '\n'; }) {
    auto devices_in = {&slow, &other};
    for (TestDevice** device : devices_in) {
      auto owned = std::make_unique<TestDevice>(device == &slow ? "slow" : "other");
      *device = owned.get();
      devices.Add(std::move(owned));
    }
    service = std::make_unique<ControlService>(*source, devices);
    session = service->Open(0, 1000);
  }
  ~ControlFixture() {
    service->Stop();
    devices.Stop();
  }

  static std::string File() {
    std::string header = "{";
    for (int i = 0; i < 4; ++i) {
      header += (i > 0 ? ",\"h." : "\"h.") + std::to_string(i) +
                R"(":{"dtype":"U8","shape":[2],"data_offsets":[)" + std::to_string(2 * i) + "," +
                std::to_string(2 * i + 2) + "]}";
    }
    return MakeFile(header + "}", "aabbccdd");
  }

  void Write(Writer& writer, const std::string& text) {
    service->Write(session, text, std::make_unique<TestRequest>(writer));
  }
  int Run(const std::string& text) {
    Writer writer;
    Write(writer, text);
    return writer.Result();
  }
  DeviceHost& host(const std::string& name) { return *devices.Find(name); }

  TemporaryFolder folder;
  Problems problems;
  std::unique_ptr<SourceTree> source = OpenSource(folder.Write("m", File()), problems);
  std::string log;  // of losses
  TestDevice* slow = nullptr;
  TestDevice* other = nullptr;
  Devices devices;
  std::unique_ptr<ControlService> service;
  std::shared_ptr<ControlSession> session;
};

/// A line without the figures of time.
inline std::string WithoutTimes(std::string text) {
  for (std::size_t at; (at = text.find(" in 0.")) != text.npos;) {
    text.erase(at, text.find("GB/s", at) + 4 - at);
  }
  return text;
}

}  // namespace safetensorfs

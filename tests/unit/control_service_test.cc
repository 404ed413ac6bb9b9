#include "core/control/control_service.h"

#include <cerrno>
#include <string>

#include "tests/catch.h"
#include "tests/unit/control_fixture.h"

namespace safetensorfs {

TEST_CASE("Commands run in order and a report says what they did") {
  ControlFixture fixture;
  CHECK(fixture.Run(
            "load slow h.[0-2]\n# a comment\n\nload slow *\nverify slow\nunload slow h.0\n") == 0);
  CHECK(WithoutTimes(fixture.session->report()) ==
        "load slow: 3 tensors, 6 bytes loaded\n"
        "load slow: 1 tensor, 2 bytes loaded; 3 tensors already there\n"
        "verify slow: 4 tensors, 8 bytes equal to the source\n"
        "unload slow: 1 tensor, 2 bytes unloaded, 0 freed, 2 still held by neighbours\n");
  CHECK(fixture.slow->held() == 3);
  CHECK(fixture.service->LatestReport(0, 1000) == fixture.session->report());
  CHECK(fixture.service->LatestReport(0, 1001).empty());
}

TEST_CASE("After a failure the rest of a descriptor's script fails with it") {
  ControlFixture fixture;
  CHECK(fixture.Run("load slow h.0\nload slow nothing\nload slow h.1\n") == ENOENT);
  CHECK(fixture.Run("load slow h.2\n") == ENOENT);
  CHECK(fixture.slow->held() == 1);
  CHECK(fixture.session->report().ends_with("load slow: no tensor matches \"nothing\"\n"));

  fixture.session = fixture.service->Open(0, 1000);
  CHECK(fixture.Run("load slow h.2\n") == 0);
  CHECK(fixture.Run("fly slow h.2\n") == EINVAL);
}

TEST_CASE("A device that is not there is ENODEV, and its other names mean it") {
  ControlFixture fixture;
  CHECK(fixture.Run("load GPU-slow h.0\n") == 0);
  CHECK(fixture.slow->held() == 1);
  CHECK(fixture.Run("load slow,cuda:7 h.1\n") == ENODEV);
  CHECK(fixture.session->report().ends_with(
      "load slow,cuda:7: no device \"cuda:7\"; there is slow, other\n"));
  CHECK(fixture.slow->held() == 1);
}

TEST_CASE("One device under two names is named once too often") {
  ControlFixture fixture;
  CHECK(fixture.Run("load slow,GPU-slow h.1\n") == EINVAL);
  CHECK(fixture.session->report() ==
        "load slow,GPU-slow: \"GPU-slow\" is slow, which is named already\n");
  CHECK(fixture.slow->loads() == 0);
}

TEST_CASE("Devices do not wait for each other, commands of one device do") {
  ControlFixture fixture;
  fixture.slow->Shut();
  Writer first;
  fixture.Write(first, "load slow h.0\n");
  fixture.slow->AwaitJob();

  const auto other_session = fixture.service->Open(0, 1001);
  Writer second;
  fixture.service->Write(other_session, "load other *\n", std::make_unique<TestRequest>(second));
  CHECK(second.Result() == 0);
  CHECK(first.IsWaiting());

  Writer third;
  fixture.service->Write(other_session, "unload slow h.0\n", std::make_unique<TestRequest>(third));
  fixture.slow->Open();
  CHECK(first.Result() == 0);
  CHECK(third.Result() == 0);
  CHECK(fixture.slow->held() == 0);
}

TEST_CASE("Several devices of one command load side by side") {
  ControlFixture fixture;
  fixture.slow->Shut();
  fixture.other->Shut();
  Writer writer;
  fixture.Write(writer, "load slow,other h.0\n");
  fixture.slow->AwaitJob();
  fixture.other->AwaitJob();
  CHECK(fixture.slow->was_one_of_several());
  CHECK(fixture.other->was_one_of_several());
  fixture.other->Open();
  fixture.slow->Open();
  CHECK(writer.Result() == 0);
  CHECK(WithoutTimes(fixture.session->report()) ==
        "load slow: 1 tensor, 2 bytes loaded\nload other: 1 tensor, 2 bytes loaded\n");
  CHECK(fixture.Run("load slow h.1\n") == 0);
  CHECK_FALSE(fixture.slow->was_one_of_several());
}

TEST_CASE("A load that fails leaves nothing behind, and other loads stay") {
  ControlFixture fixture;
  CHECK(fixture.Run("load slow h.0\n") == 0);
  fixture.slow->FailNext(ENOMEM, "needs 6 bytes, free are 1");
  CHECK(fixture.Run("load slow *\n") == ENOMEM);
  CHECK(fixture.slow->held() == 1);
  CHECK(fixture.host("slow").loaded().Total(0).tensors == 1);
  CHECK(fixture.session->report().ends_with("load slow: needs 6 bytes, free are 1\n"));
}

TEST_CASE("A writer who wants to end cancels its command, running or waiting") {
  ControlFixture fixture;
  fixture.slow->Shut();
  Writer running;
  Writer waiting;
  fixture.Write(running, "load slow h.0\n");
  fixture.slow->AwaitJob();
  const auto other_session = fixture.service->Open(0, 1001);
  fixture.service->Write(other_session, "load slow h.1\nload other h.1\n",
                         std::make_unique<TestRequest>(waiting));
  waiting.wants_to_end = true;
  waiting.Interrupt();
  CHECK(waiting.Result() == EINTR);
  CHECK(running.IsWaiting());
  running.wants_to_end = true;
  running.Interrupt();
  CHECK(running.Result() == EINTR);
  CHECK(fixture.slow->held() == 0);
  CHECK(fixture.other->held() == 0);
}

TEST_CASE("Choosing tensors is cancelled too, and holds up no other device") {
  const TemporaryFolder folder;
  std::string header = "{";
  for (int i = 0; i < 20'000; ++i) {
    header += (i > 0 ? ",\"" : "\"") + std::to_string(i) +
              R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  Problems problems;
  const auto source = OpenSource(folder.Write("m", MakeFile(header + "}")), problems);
  REQUIRE(source);
  Devices devices(*source);
  for (const char* name : {"one", "two"}) devices.Add(std::make_unique<TestDevice>(name));
  ControlService service(*source, devices);
  std::string script = "load one";
  for (int i = 0; i < 20'000; ++i) script += " *" + std::to_string(i) + "*x*";
  Writer choosing;
  service.Write(service.Open(0, 1000), script, std::make_unique<TestRequest>(choosing));
  Writer other;
  service.Write(service.Open(0, 1000), "load two 17\n", std::make_unique<TestRequest>(other));
  CHECK(other.Result() == 0);
  CHECK(choosing.IsWaiting());
  choosing.wants_to_end = true;
  choosing.Interrupt();
  CHECK(choosing.Result() == EINTR);
  service.Stop();
}

TEST_CASE("A harmless signal cancels nothing, and one that ends the writer later still does") {
  ControlFixture fixture;
  fixture.slow->Shut();
  Writer writer;
  fixture.Write(writer, "load slow h.0\n");
  fixture.slow->AwaitJob();
  writer.Interrupt();
  while (writer.looks < 2) std::this_thread::yield();
  CHECK(writer.IsWaiting());
  writer.wants_to_end = true;
  CHECK(writer.Result() == EINTR);
  CHECK(fixture.slow->held() == 0);
}

TEST_CASE("Text that a buffer cut waits for its end") {
  ControlFixture fixture;
  const auto comment = [](std::size_t size) { return std::string(size - 1, '#') + "\n"; };
  CHECK(fixture.Run(comment(506) + "load s") == 0);
  CHECK(fixture.slow->held() == 0);
  CHECK(fixture.Run("low h.0") == 0);
  CHECK(fixture.slow->held() == 1);

  CHECK(fixture.Run(comment(500) + "load slow h.") == 0);
  Writer closing;
  fixture.service->Close(fixture.session, std::make_unique<TestRequest>(closing));
  CHECK(closing.Result() == ENOENT);
  Writer again;
  fixture.service->Close(fixture.session, std::make_unique<TestRequest>(again));
  CHECK(again.Result() == 0);
}

TEST_CASE("A writer that is killed runs no line that it has not ended") {
  ControlFixture fixture;
  CHECK(fixture.Run(std::string(499, '#') + "\nload slow h.") == 0);
  Writer killed;
  killed.is_killed = true;
  fixture.service->Close(fixture.session, std::make_unique<TestRequest>(killed));
  CHECK(killed.Result() == 0);
  CHECK(fixture.session->report().empty());
}

TEST_CASE("A report keeps its end when it grows too long") {
  ControlFixture fixture;
  std::string script;
  for (int i = 0; i < 5000; ++i) script += "help\n";
  CHECK(fixture.Run(script + "load slow h.0\n") == 0);
  const std::string report = fixture.session->report();
  CHECK(report.size() <= ControlSession::kMaxReport);
  CHECK(report.starts_with("(earlier lines are left out)\n"));
  CHECK(report.find("load slow: 1 tensor") != report.npos);
  CHECK(fixture.session->report(report.size() - 5) == report.substr(report.size() - 5));
}

TEST_CASE("A file that is removed is unloaded, but not while the device is busy") {
  ControlFixture fixture;
  REQUIRE(fixture.Run("load slow h.0 h.1\n") == 0);
  DeviceHost& host = fixture.host("slow");
  const auto unlink = [&host](const LoadedTensors::Instance& instance) {
    std::promise<int> done;
    host.Unlink(instance, 4711, [&done](Outcome outcome) { done.set_value(outcome.error); });
    return done.get_future().get();
  };
  const LoadedTensors::Instance instance = *host.loaded().Find(0, 0);
  fixture.slow->Shut();
  Writer writer;
  fixture.Write(writer, "verify slow\n");
  fixture.slow->AwaitJob();
  CHECK(unlink(instance) == EBUSY);
  fixture.slow->Open();
  CHECK(writer.Result() == 0);
  CHECK(unlink(instance) == 0);
  CHECK(unlink(instance) == ENOENT);
  CHECK(fixture.slow->held() == 1);
}

TEST_CASE("A source that changed cannot be loaded") {
  ControlFixture fixture;
  fixture.folder.Write("m", ControlFixture::File() + "more");
  CHECK(fixture.Run("load slow *\n") == ESTALE);
  CHECK(fixture.slow->loads() == 0);
}

TEST_CASE("Stopping answers everyone who waits") {
  ControlFixture fixture;
  fixture.slow->Shut();
  std::vector<Writer> writers(50);
  std::vector<std::shared_ptr<ControlSession>> sessions;
  for (Writer& writer : writers) {
    sessions.push_back(fixture.service->Open(0, 1000));
    fixture.service->Write(sessions.back(), "load slow *\n", std::make_unique<TestRequest>(writer));
  }
  fixture.slow->AwaitJob();
  fixture.service->Stop();
  for (Writer& writer : writers) CHECK(writer.Result() == EINTR);
  CHECK(fixture.slow->held() == 0);
}

}  // namespace safetensorfs

#include "core/control/devices.h"

#include <future>
#include <stdexcept>

#include "tests/catch.h"
#include "tests/unit/control_fixture.h"
#include "tests/unit/test_finder.h"

namespace safetensorfs {
namespace {

using Search = Devices::Search;

const char kNoDriver[] = "no driver: libtest.so cannot be loaded";

// A lookup that may have to wait.
struct Lookup {
  Lookup(Devices& devices, Search search) {
    devices.LookForMore(search, [this] { ended.set_value(); });
  }
  bool IsWaiting() { return end.wait_for(std::chrono::seconds(0)) != std::future_status::ready; }
  void Await() { end.get(); }

  std::promise<void> ended;
  std::future<void> end = ended.get_future();
};

int NumberOf(const Devices& devices, const std::string& name) {
  for (std::size_t number = 0; number < devices.all().size(); ++number) {
    if (devices.all()[number]->name() == name) return static_cast<int>(number);
  }
  return -1;
}

}  // namespace

TEST_CASE("Without a finder nobody waits, and what there is is named") {
  ControlFixture fixture;
  CHECK_FALSE(Lookup(fixture.devices, Search::kOnce).IsWaiting());
  CHECK_FALSE(Lookup(fixture.devices, Search::kAgain).IsWaiting());
  CHECK(fixture.devices.Find("GPU-slow")->name() == "slow");
  CHECK(fixture.devices.Find("gpu") == nullptr);
  CHECK(fixture.devices.Missing("a\nb") == "no device \"a\\nb\"; there is slow, other");
}

TEST_CASE("A finder runs when a device is looked for, and once for all who wait") {
  TestFinder finder;
  ControlFixture fixture(finder.Function());
  CHECK(finder.runs() == 0);
  Lookup first(fixture.devices, Search::kOnce);
  finder.AwaitRuns(1);
  Lookup second(fixture.devices, Search::kOnce);
  Lookup third(fixture.devices, Search::kAgain);
  CHECK(first.IsWaiting());
  CHECK(second.IsWaiting());
  CHECK(third.IsWaiting());
  CHECK(fixture.devices.all().size() == 2);
  finder.Answer({"gpu"});
  first.Await();
  second.Await();
  third.Await();
  CHECK(finder.runs() == 1);
  CHECK(NumberOf(fixture.devices, "gpu") == 2);
  CHECK(fixture.devices.Missing("gpu7") == "no device \"gpu7\"; there is slow, other, gpu");
}

TEST_CASE("What was not found is looked for again only by those who ask for that") {
  TestFinder finder;
  ControlFixture fixture(finder.Function());
  finder.Answer({}, kNoDriver);
  Lookup(fixture.devices, Search::kOnce).Await();
  CHECK_FALSE(Lookup(fixture.devices, Search::kOnce).IsWaiting());
  CHECK(finder.runs() == 1);
  CHECK(fixture.devices.Missing("gpu") ==
        "no device \"gpu\": no driver: libtest.so cannot be loaded; there is slow, other");

  Lookup again(fixture.devices, Search::kAgain);
  finder.AwaitRuns(2);
  CHECK(again.IsWaiting());
  CHECK_FALSE(Lookup(fixture.devices, Search::kOnce).IsWaiting());
  finder.Answer({"gpu", "gpu1"});
  again.Await();
  CHECK(fixture.devices.Missing("gpu7") == "no device \"gpu7\"; there is slow, other, gpu, gpu1");
}

TEST_CASE("A device that is found twice stays what it was") {
  TestFinder finder;
  ControlFixture fixture(finder.Function());
  finder.Answer({"gpu"});
  Lookup(fixture.devices, Search::kAgain).Await();
  const DeviceHost* gpu = fixture.devices.Find("gpu");
  finder.Answer({"slow", "gpu1", "gpu"});
  Lookup(fixture.devices, Search::kAgain).Await();
  CHECK(fixture.devices.Find("gpu") == gpu);
  CHECK(fixture.devices.all().size() == 4);
  CHECK(NumberOf(fixture.devices, "gpu") == 2);
  CHECK(NumberOf(fixture.devices, "gpu1") == 3);
}

TEST_CASE("Who wants to know of every device is told before it can be seen") {
  TestFinder finder;
  ControlFixture fixture(finder.Function());
  std::vector<std::pair<std::uint32_t, std::size_t>> added;
  fixture.devices.OnAdd(
      [&](std::uint32_t number) { added.emplace_back(number, fixture.devices.all().size()); });
  finder.Answer({"gpu"});
  Lookup(fixture.devices, Search::kOnce).Await();
  CHECK(added == std::vector<std::pair<std::uint32_t, std::size_t>>{{0, 2}, {1, 2}, {2, 2}});
}

TEST_CASE("A finder that fails says why there is nothing") {
  ControlFixture fixture([](std::stop_token) -> FoundDevices {
    throw std::runtime_error("the probe was killed by signal 11");
  });
  Lookup(fixture.devices, Search::kOnce).Await();
  CHECK(fixture.devices.Missing("gpu") ==
        "no device \"gpu\": the probe was killed by signal 11; there is slow, other");
}

TEST_CASE("Stopping stops the finder and calls back everyone") {
  TestFinder finder;
  ControlFixture fixture(finder.Function());
  Lookup first(fixture.devices, Search::kOnce);
  finder.AwaitRuns(1);
  Lookup second(fixture.devices, Search::kAgain);
  fixture.devices.Stop();
  CHECK_FALSE(first.IsWaiting());
  CHECK_FALSE(second.IsWaiting());
  CHECK_FALSE(Lookup(fixture.devices, Search::kAgain).IsWaiting());
  CHECK(finder.runs() == 1);
}

TEST_CASE("A command that names an unknown device waits for the finder") {
  TestFinder finder;
  ControlFixture fixture(finder.Function());
  Writer writer;
  fixture.Write(writer, "load slow,gpu h.0\nload GPU-gpu h.1\n");
  finder.AwaitRuns(1);
  CHECK(writer.IsWaiting());
  CHECK(fixture.slow->loads() == 0);

  const auto other_session = fixture.service->Open(0, 1001);
  Writer second;
  fixture.service->Write(other_session, "load slow h.3\n", std::make_unique<TestRequest>(second));
  CHECK(second.Result() == 0);
  CHECK(writer.IsWaiting());

  finder.Answer({"gpu"});
  CHECK(writer.Result() == 0);
  CHECK(WithoutTimes(fixture.session->report()) ==
        "load slow: 1 tensor, 2 bytes loaded\nload gpu: 1 tensor, 2 bytes loaded\n"
        "load gpu: 1 tensor, 2 bytes loaded\n");
  CHECK(finder.runs() == 1);
}

TEST_CASE("Commands share a run of the finder, and each command that fails asks once") {
  TestFinder finder;
  ControlFixture fixture(finder.Function());
  const auto other_session = fixture.service->Open(0, 1001);
  Writer first;
  fixture.Write(first, "load gpu,gpu1 h.0\n");
  finder.AwaitRuns(1);
  Writer second;
  fixture.service->Write(other_session, "load gpu h.0\n", std::make_unique<TestRequest>(second));
  // Once this one is done, the service has read those before it.
  Writer known;
  fixture.service->Write(fixture.service->Open(0, 1002), "help\n",
                         std::make_unique<TestRequest>(known));
  CHECK(known.Result() == 0);
  finder.Answer({}, kNoDriver);
  CHECK(first.Result() == ENODEV);
  CHECK(second.Result() == ENODEV);
  CHECK(finder.runs() == 1);
  CHECK(fixture.session->report() ==
        "load gpu,gpu1: no device \"gpu\": no driver: libtest.so cannot be loaded; there is slow, "
        "other\n");
  CHECK(other_session->report() ==
        "load gpu: no device \"gpu\": no driver: libtest.so cannot be loaded; there is slow, "
        "other\n");

  fixture.session = fixture.service->Open(0, 1000);
  finder.Answer({"gpu"});
  CHECK(fixture.Run("load gpu h.0\n") == 0);
  CHECK(finder.runs() == 2);
}

TEST_CASE("A writer who wants to end does not wait for the finder") {
  TestFinder finder;
  ControlFixture fixture(finder.Function());
  Writer writer;
  fixture.Write(writer, "load gpu h.0\nload slow h.0\n");
  finder.AwaitRuns(1);
  writer.wants_to_end = true;
  writer.Interrupt();
  CHECK(writer.Result() == EINTR);
  CHECK(fixture.session->report() == "load gpu: cancelled before it began\n");
  finder.Answer({"gpu"});
  Lookup(fixture.devices, Search::kOnce).Await();
  CHECK(fixture.devices.Find("gpu")->loaded().Total(0).tensors == 0);
  CHECK(fixture.slow->loads() == 0);
}

TEST_CASE("Stopping answers those who wait for the finder") {
  TestFinder finder;
  ControlFixture fixture(finder.Function());
  Writer writer;
  fixture.Write(writer, "load gpu h.0\n");
  finder.AwaitRuns(1);
  fixture.service->Stop();
  CHECK(writer.Result() == EINTR);
}

}  // namespace safetensorfs

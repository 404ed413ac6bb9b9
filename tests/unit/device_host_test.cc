#include "core/control/device_host.h"

#include <unistd.h>

#include <cerrno>
#include <thread>

#include "tests/catch.h"
#include "tests/unit/control_fixture.h"

namespace safetensorfs {
namespace {

using Instance = LoadedTensors::Instance;

const std::string kHolder = "in use by pid " + std::to_string(getpid()) + " (core_tests)\n";

// The names of the tensors that a slab's text lists.
std::string NamesIn(const std::string& text) {
  std::string names;
  const std::string key = "\"name\":\"";
  for (std::size_t at = 0; (at = text.find(key, at)) != text.npos;) {
    at += key.size();
    names += (names.empty() ? "" : " ") + text.substr(at, text.find('"', at) - at);
  }
  return names;
}

int ErrorOf(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.code();
  }
  return 0;
}

}  // namespace

TEST_CASE("A leased tensor keeps its whole slab, and says who holds it") {
  ControlFixture fixture;
  REQUIRE(fixture.Run("load slow *\n") == 0);
  DeviceHost& host = fixture.host("slow");
  const auto lease = host.Lease(*host.loaded().Find(0, 0), getpid());
  REQUIRE(lease);
  CHECK(fixture.Run("unload slow h.2\n") == 0);
  CHECK(fixture.Run("unload slow h.1\n") == EBUSY);
  CHECK(fixture.session->report().ends_with("unload slow: " + kHolder));
  fixture.session = fixture.service->Open(0, 1000);
  host.loaded().Release(*lease);
  CHECK(fixture.Run("unload slow *\n") == 0);
  CHECK(fixture.slow->held() == 0);
}

TEST_CASE("A slab tells what is loaded in it, and is gone with the last of that") {
  ControlFixture fixture;
  REQUIRE(fixture.Run("load slow *\n") == 0);
  DeviceHost& host = fixture.host("slow");
  const std::vector<std::uint64_t> numbers = host.SlabNumbers(0);
  REQUIRE(numbers.size() == 2);
  const auto slab = host.FindInSlab(0, numbers[0]);
  REQUIRE(slab);
  CHECK(NamesIn(*host.SlabText(*slab)) == "h.0 h.1");
  CHECK(NamesIn(*host.SlabText(*host.FindInSlab(0, numbers[1]))) == "h.2 h.3");

  REQUIRE(fixture.Run("unload slow h.1\n") == 0);
  CHECK(host.FindInSlab(0, numbers[0])->serial == slab->serial);
  CHECK(NamesIn(*host.SlabText(*slab)) == "h.0");
  REQUIRE(fixture.Run("unload slow h.0\nload slow h.0 h.1\n") == 0);
  CHECK_FALSE(host.FindInSlab(0, numbers[0]));
  CHECK(ErrorOf([&] { host.SlabText(*slab); }) == ESTALE);
  CHECK_FALSE(host.Lease(*slab, getpid()));
  const std::uint64_t third = host.SlabNumbers(0).back();
  CHECK(NamesIn(*host.SlabText(*host.FindInSlab(0, third))) == "h.0 h.1");
}

TEST_CASE("A leased slab keeps its neighbours and its text") {
  ControlFixture fixture;
  REQUIRE(fixture.Run("load slow *\n") == 0);
  DeviceHost& host = fixture.host("slow");
  const auto slab = host.FindInSlab(0, host.SlabNumbers(0)[1]);
  const std::string text = *host.SlabText(*slab);
  const auto lease = host.Lease(*slab, getpid());
  REQUIRE(lease);
  CHECK(fixture.Run("unload slow h.0\nunload slow h.3\n") == EBUSY);
  CHECK(fixture.session->report().ends_with("unload slow: " + kHolder));
  CHECK(*host.SlabText(*slab) == text);
  host.loaded().Release(*lease);
  fixture.session = fixture.service->Open(0, 1000);
  CHECK(fixture.Run("unload slow h.3\n") == 0);
}

TEST_CASE("There is no slab while what it will hold is being loaded") {
  ControlFixture fixture;
  fixture.slow->Shut();
  Writer writer;
  fixture.Write(writer, "load slow h.0\n");
  fixture.slow->AwaitJob();
  DeviceHost& host = fixture.host("slow");
  REQUIRE(host.SlabNumbers(0).size() == 1);
  CHECK_FALSE(host.FindInSlab(0, host.SlabNumbers(0)[0]));
  fixture.slow->Open();
  CHECK(writer.Result() == 0);
  CHECK(host.FindInSlab(0, host.SlabNumbers(0)[0]));
}

TEST_CASE("A slab that goes while it is looked for is not taken for the next") {
  ControlFixture fixture;
  REQUIRE(fixture.Run("load slow h.0 h.1\n") == 0);
  DeviceHost& host = fixture.host("slow");
  const std::uint64_t number = host.SlabNumbers(0)[0];
  const auto load_again = [&] { fixture.Run("unload slow *\nload slow h.0 h.1\n"); };
  fixture.slow->AfterNextSlab(load_again);
  CHECK_FALSE(host.FindInSlab(0, number));

  const std::uint64_t next = host.SlabNumbers(0)[0];
  CHECK(next != number);
  const Instance first = *host.FindInSlab(0, next);
  fixture.slow->AfterNextSlab(load_again);
  CHECK(ErrorOf([&] { host.SlabText(first); }) == ESTALE);

  const Instance second = *host.FindInSlab(0, host.SlabNumbers(0)[0]);
  fixture.slow->AfterNextSlab([&] { fixture.Run("unload slow h.1\n"); });
  CHECK(NamesIn(*host.SlabText(second)) == "h.0");
  CHECK(NamesIn(*host.SlabText(second)) == "h.0");
}

TEST_CASE("A slab whose lease was taken holds what it says, whatever is unloaded meanwhile") {
  ControlFixture fixture;
  DeviceHost& host = fixture.host("slow");
  std::atomic<bool> ends = false;
  std::thread changing([&] {
    while (!ends) {
      const auto session = fixture.service->Open(0, 1001);
      Writer writer;
      fixture.service->Write(session, "load slow h.0 h.1\nunload slow h.0\nunload slow h.1\n",
                             std::make_unique<TestRequest>(writer));
      writer.Result();
    }
  });
  for (int leases = 0; leases < 200;) {
    for (const std::uint64_t number : host.SlabNumbers(0)) {
      const auto slab = host.FindInSlab(0, number);
      const auto lease = slab ? host.Lease(*slab, getpid()) : std::nullopt;
      if (!lease) continue;
      ++leases;
      // By another of its tensors, perhaps, if the load ended while the first was looked for.
      const auto again = host.FindInSlab(0, number);
      REQUIRE(again);
      const std::string text = *host.SlabText(*slab);
      CHECK(*host.SlabText(*again) == text);
      CHECK(text.find("\"generation\":" + std::to_string(number) + ",") != text.npos);
      CHECK(fixture.slow->held() >= (NamesIn(text) == "h.0 h.1" ? 2u : 1u));
      CHECK(*host.SlabText(*slab) == text);
      host.loaded().Release(*lease);
    }
  }
  ends = true;
  changing.join();
}

TEST_CASE("What a device loses is gone, and can be loaded again") {
  ControlFixture fixture;
  REQUIRE(fixture.Run("load slow *\n") == 0);
  DeviceHost& host = fixture.host("slow");
  CHECK_FALSE(host.LastFailure());
  CHECK(host.InfoText(0).find("last_failure") == std::string::npos);
  const Instance instance = *host.loaded().Find(0, 0);
  const std::uint64_t number = host.SlabNumbers(0)[0];
  REQUIRE(host.Lease(instance, getpid()));

  fixture.slow->Die("it was killed by signal 9");
  CHECK(host.loaded().Total(0).tensors == 0);
  CHECK_FALSE(host.loaded().FindSerial(instance.serial));
  CHECK_FALSE(host.Lease(instance, getpid()));
  CHECK_FALSE(host.FindInSlab(0, number));
  CHECK(ErrorOf([&] { host.SlabText(instance); }) == ESTALE);
  const std::string lost = "lost 4 tensors, 8 bytes: it was killed by signal 9";
  CHECK(host.LastFailure() == lost);
  CHECK(fixture.log == "slow: " + lost + "\n");
  CHECK(host.InfoText(0).ends_with(R"("leases":0,"last_failure":")" + lost + "\"}"));
  CHECK_FALSE(fixture.host("other").LastFailure());

  CHECK(fixture.Run("load slow h.0\n") == 0);
  CHECK(host.loaded().Find(0, 0)->serial != instance.serial);
  fixture.slow->Die("it was killed again");
  CHECK(host.LastFailure() == "lost 1 tensor, 2 bytes: it was killed again");
}

TEST_CASE("A command that runs when the device fails says why, whatever the device says") {
  const std::string sentence = "the device failed and lost what was loaded: it was killed\n";
  for (const std::string line : {"load slow h.1", "verify slow"}) {
    for (const bool says_something : {false, true}) {
      ControlFixture fixture;
      REQUIRE(fixture.Run("load slow h.0\n") == 0);
      fixture.slow->Shut();
      Writer writer;
      fixture.Write(writer, line + "\nload slow h.2\n");
      fixture.slow->AwaitJob();
      fixture.slow->Die("it was killed");
      if (says_something) fixture.slow->FailNext(ENOMEM, "broken pipe");
      fixture.slow->Open();
      CHECK(writer.Result() == EIO);
      CHECK(fixture.session->report().ends_with(": " + sentence));
      CHECK(fixture.slow->held() == 0);
      CHECK(fixture.host("slow").loaded().Total(0) == LoadedTensors::Amount{});
    }
  }
}

TEST_CASE("A command that is cancelled when the device fails is cancelled") {
  ControlFixture fixture;
  fixture.slow->Shut();
  Writer writer;
  fixture.Write(writer, "load slow h.1\n");
  fixture.slow->AwaitJob();
  fixture.slow->Die();
  writer.wants_to_end = true;
  writer.Interrupt();
  CHECK(writer.Result() == EINTR);
}

}  // namespace safetensorfs

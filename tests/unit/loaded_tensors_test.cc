#include "core/device/loaded_tensors.h"

#include <thread>
#include <vector>

#include "tests/catch.h"

namespace safetensorfs {
namespace {

using std::chrono::milliseconds;

// A tensor's number is its size too.
std::uint64_t NbytesOf(std::uint32_t, std::uint32_t tensor) { return tensor; }

std::uint64_t OwnUnit(std::uint32_t tensor) { return tensor; }

std::vector<Holder> Remove(LoadedTensors& loaded, std::vector<std::uint32_t> tensors,
                           milliseconds patience = milliseconds(0)) {
  return loaded.Remove(0, tensors, OwnUnit, patience);
}

}  // namespace

TEST_CASE("Every load has serial numbers of its own, which lead to it until it is removed") {
  LoadedTensors loaded({10, 10}, NbytesOf);
  loaded.Add(0, std::vector<std::uint32_t>{2, 5, 7});
  loaded.Add(1, std::vector<std::uint32_t>{5});
  const auto five = loaded.Find(0, 5);
  REQUIRE(five);
  CHECK(loaded.FindSerial(five->serial)->tensor == 5);
  CHECK(loaded.FindSerial(loaded.Find(1, 5)->serial)->place == 1);
  CHECK_FALSE(loaded.Find(0, 3));
  CHECK_FALSE(loaded.FindSerial(0));
  CHECK_FALSE(loaded.FindSerial(100));

  CHECK(Remove(loaded, {5}).empty());
  CHECK_FALSE(loaded.FindSerial(five->serial));
  CHECK(loaded.Total(0).tensors == 2);
  loaded.Add(0, std::vector<std::uint32_t>{5});
  CHECK(loaded.Find(0, 5)->serial != five->serial);
  CHECK_FALSE(loaded.FindSerial(five->serial));

  CHECK(loaded.Next(0, 0)->tensor == 2);
  CHECK(loaded.Next(0, 3)->tensor == 5);
  CHECK_FALSE(loaded.Next(0, 8));
}

TEST_CASE("What is missing is what no load has brought, from the start on") {
  LoadedTensors loaded({10, 10}, NbytesOf);
  const std::vector<std::uint32_t> wanted = {2, 5, 7, 9};
  CHECK(loaded.Missing(0, wanted) == wanted);
  loaded.Add(0, std::vector<std::uint32_t>{2, 3, 7});
  CHECK(loaded.Missing(0, wanted) == std::vector<std::uint32_t>{5, 9});
  CHECK(loaded.Missing(1, wanted) == wanted);
}

TEST_CASE("A lease keeps its unit, and ends with its release") {
  LoadedTensors loaded({10}, NbytesOf);
  loaded.Add(0, std::vector<std::uint32_t>{1, 2});
  const auto lease = loaded.Lease(loaded.Find(0, 1)->serial, OwnUnit(1), {42, "client"});
  REQUIRE(lease);
  const auto holders = Remove(loaded, {1, 2});
  REQUIRE(holders.size() == 1);
  CHECK(holders[0].pid == 42);
  CHECK(holders[0].program == "client");
  CHECK(loaded.Total(0).tensors == 2);
  CHECK(Remove(loaded, {2}).empty());
  loaded.Release(*lease);
  CHECK(Remove(loaded, {1}).empty());
  CHECK_FALSE(loaded.Lease(1, OwnUnit(1), {42, "client"}));
}

TEST_CASE("Removing waits for a lease that is about to end") {
  LoadedTensors loaded({10}, NbytesOf);
  loaded.Add(0, std::vector<std::uint32_t>{1});
  const auto lease = loaded.Lease(loaded.Find(0, 1)->serial, OwnUnit(1), {42, "client"});
  std::thread releasing([&] { loaded.Release(*lease); });
  CHECK(Remove(loaded, {1}, milliseconds(60'000)).empty());
  releasing.join();
}

TEST_CASE("Clearing forgets tensors and leases") {
  LoadedTensors loaded({10}, NbytesOf);
  loaded.Add(0, std::vector<std::uint32_t>{1});
  const std::uint64_t serial = loaded.Find(0, 1)->serial;
  const auto lease = loaded.Lease(serial, OwnUnit(1), {42, "client"});
  CHECK(loaded.Clear() == LoadedTensors::Amount{1, 1});
  CHECK(loaded.LeaseCount() == 0);
  loaded.Release(*lease);
  CHECK_FALSE(loaded.FindSerial(serial));
  // A load that was on its way when all was lost has lost its tensors too.
  CHECK_FALSE(loaded.Add(0, std::vector<std::uint32_t>{1}, loaded.losses() - 1));
  CHECK(loaded.Add(0, std::vector<std::uint32_t>{1}, loaded.losses()));
  CHECK(loaded.Find(0, 1)->serial != serial);
  loaded.Clear();
  CHECK(Remove(loaded, {1}).empty());
  CHECK(loaded.Total(0).tensors == 0);
}

TEST_CASE("What is loaded is counted by checkpoint") {
  using Amount = LoadedTensors::Amount;
  LoadedTensors loaded({10, 10}, NbytesOf);
  const std::uint64_t before = loaded.changes();
  loaded.Add(0, std::vector<std::uint32_t>{2, 5, 7});
  loaded.Add(1, std::vector<std::uint32_t>{5});
  CHECK(loaded.Total(0) == Amount{3, 14});
  CHECK(loaded.Total(1) == Amount{1, 5});
  const std::uint64_t between = loaded.changes();
  CHECK(between > before);
  CHECK(Remove(loaded, {5, 3}).empty());
  CHECK(loaded.Total(0) == Amount{2, 9});
  CHECK(loaded.changes() > between);
  const std::uint64_t after = loaded.changes();
  CHECK(loaded.Clear() == Amount{3, 14});
  CHECK(loaded.Total(1) == Amount{});
  CHECK(loaded.changes() > after);
}

}  // namespace safetensorfs

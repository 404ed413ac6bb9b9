#include "gpu/device/cuda_device.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "tests/gpu/gpu.h"

namespace safetensorfs {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

// Tensors of every size that is treated differently: none, tiny, odd, a window, several windows.
const std::vector<std::uint64_t> kSizes = {0,       1,      255,     256,       257,    4096,
                                           100'000, 65'535, 1 << 22, 9'000'001, 3,      0,
                                           70'000,  12,     40'000,  1,         500'000};

std::string Field(const std::string& fields, const std::string& name) {
  const std::size_t at = fields.find("\"" + name + "\":");
  if (at == fields.npos) return "";
  const std::size_t begin = at + name.size() + 3;
  return fields.substr(begin, fields.find(',', begin) - begin);
}

}  // namespace

TEST_CASE("What is loaded is what the file holds, is verified, and is freed") {
  const Simulation simulation;
  const Model model(kSizes);
  Gpu gpu(ShortLimits());
  gpu.Load(model);
  gpu.CheckHolds(model);
  gpu.Verify(model);
  CHECK(simulation.AllocatedBytes(0) == 14 * kMiB);
  CHECK(gpu->Info().held_nbytes == 14 * kMiB);
  CHECK(simulation.AllocatedBytes(1) == 0);
  CHECK(gpu->Unload(model.checkpoint(), model.all()) == 14 * kMiB);
  CHECK(simulation.AllocatedBytes(0) == 0);
  CHECK(gpu->Info().held_nbytes == 0);
  // The context goes too, some time after the last tensor.
  WaitUntil([&] { return simulation.Processes() == 0; });
  CHECK(simulation.UsedBytes(0) == 0);
  CHECK(gpu.losses().empty());
  // And what comes after finds a new one.
  gpu.Load(model);
  gpu.CheckHolds(model);
  CHECK(simulation.Count("old_abi_calls") == 0);
  CHECK(simulation.Count("copies_outside_memory") == 0);
  CHECK(simulation.Count("freed_while_copying") == 0);
  CHECK(simulation.Count("host_freed_while_copying") == 0);
}

TEST_CASE("Finding devices costs no context, nor does knowing them") {
  const Simulation simulation;
  Gpu gpu;
  CHECK(gpu->name() == "cuda:0");
  const DeviceInfo info = gpu->Info();
  CHECK(info.uuid.starts_with("GPU-"));
  CHECK(info.total_nbytes == std::uint64_t{8} << 30);
  CHECK_FALSE(info.free_nbytes);
  CHECK(gpu->IsAlsoCalled(info.uuid));
  CHECK_FALSE(gpu->IsAlsoCalled("GPU-"));
  CHECK(simulation.Count("contexts_created") == 0);
  CHECK(simulation.Processes() == 0);
}

TEST_CASE("A slab is freed with its last tensor") {
  const Simulation simulation;
  const Model model({100, 100, 100});
  Gpu gpu;
  gpu.Load(model);
  CHECK(gpu->LeaseUnit(model.checkpoint(), 0) == gpu->LeaseUnit(model.checkpoint(), 2));
  const auto numbers = gpu->SlabNumbers(model.checkpoint());
  REQUIRE(numbers.size() == 1);
  CHECK(gpu->FindSlab(model.checkpoint(), numbers[0])->tensors.size() == 3);
  CHECK(gpu->Unload(model.checkpoint(), std::vector<std::uint32_t>{0, 2}) == 0);
  const auto slab = gpu->FindSlab(model.checkpoint(), numbers[0]);
  REQUIRE(slab->tensors.size() == 1);
  CHECK(slab->tensors[0].tensor == 1);
  CHECK(slab->tensors[0].offset == 256);
  CHECK(simulation.AllocatedBytes(0) == 2 * kMiB);
  // What comes back goes into another slab: leases pin addresses.
  gpu.Load(model, {0});
  CHECK(gpu->LeaseUnit(model.checkpoint(), 0) != gpu->LeaseUnit(model.checkpoint(), 1));
  gpu.Verify(model, {0, 1});
  CHECK(gpu->Unload(model.checkpoint(), std::vector<std::uint32_t>{1}) == 2 * kMiB);
  CHECK_FALSE(gpu->FindSlab(model.checkpoint(), numbers[0]));
  CHECK(ReadWhole(*gpu, model.checkpoint(), 0).second == model.bytes_of(0));
  CHECK(ReadWhole(*gpu, model.checkpoint(), 1).first == ESTALE);
}

TEST_CASE("Tensors of several shards and checkpoints keep apart") {
  const Simulation simulation;
  const Model one({1000, 2000});
  const Model two({3000, 10, 20});
  Gpu gpu;
  gpu.Load(one);
  gpu.Load(two);
  gpu.CheckHolds(one);
  gpu.CheckHolds(two);
  CHECK(gpu->SlabNumbers(one.checkpoint()).size() == 1);
  CHECK(gpu->SlabNumbers(one.checkpoint()) != gpu->SlabNumbers(two.checkpoint()));
  CHECK_FALSE(gpu->FindSlab(one.checkpoint(), gpu->SlabNumbers(two.checkpoint())[0]));
  gpu->Unload(one.checkpoint(), one.all());
  gpu.CheckHolds(two);
}

TEST_CASE("A handle says how to attach, one without bytes why not") {
  const Simulation simulation;
  const Model model({100, 0, 300});
  Gpu gpu;
  gpu.Load(model);
  const std::string fields = gpu->HandleFields(model.checkpoint(), 2);
  CHECK(Field(fields, "export") == "\"cuda_ipc\"");
  CHECK(Field(fields, "ipc_handle").size() == 128 + 2);
  CHECK(Field(fields, "offset") == "256");
  CHECK(Field(fields, "slab_nbytes") == std::to_string(2 * kMiB));
  CHECK(Field(fields, "euid") == std::to_string(geteuid()));
  CHECK(Field(fields, "device_uuid") == "\"" + gpu->Info().uuid + "\"");
  const std::string pid = Field(fields, "pid");
  CHECK(std::filesystem::exists("/proc/" + pid));
  struct stat ours = {};
  stat("/proc/self/ns/pid", &ours);
  CHECK(Field(fields, "pid_namespace") == std::to_string(ours.st_ino));
  const std::string empty = gpu->HandleFields(model.checkpoint(), 1);
  CHECK(Field(empty, "export") == "\"none\"");
  CHECK(Field(empty, "reason") == "\"the tensor has no bytes\"");
}

TEST_CASE("Verifying names the tensor that somebody wrote to, and its first such byte") {
  const Simulation simulation;
  const Model model({5000, 9'000'000, 700});
  Gpu gpu;
  gpu.Load(model);
  // As a client can, the simulation's memory is written through the worker's own descriptors.
  const std::string pid = Field(gpu->HandleFields(model.checkpoint(), 1), "pid");
  const std::uint64_t offset =
      std::stoull(Field(gpu->HandleFields(model.checkpoint(), 1), "offset"));
  bool is_written = false;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + pid + "/fd")) {
    struct stat status = {};
    if (stat(entry.path().c_str(), &status) != 0 || status.st_size != 10 * kMiB) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset + 8'000'000));
    file.put(static_cast<char>(~model.bytes_of(1)[8'000'000]));
    is_written = static_cast<bool>(file.flush());
  }
  REQUIRE(is_written);
  const Error error = ErrorOf([&] { gpu.Verify(model); });
  CHECK(error.code() == EIO);
  CHECK(error.what() == "tensor \"t1\": device memory differs from " + model.path() +
                            " from byte 8000000 of the tensor on");
  gpu.Verify(model, {0, 2});
  CHECK(gpu.losses().empty());
}

TEST_CASE("A worker has nothing of the daemon open") {
  const Simulation simulation;
  const Model model({100});
  const TemporaryFolder folder;
  // As libfuse opens what it needs: not close-on-exec.
  const int leaked = open(folder.Write("leaked", "x").c_str(), O_RDONLY);
  REQUIRE(leaked > GpuProcess::kSocket);
  Gpu gpu;
  gpu.Load(model);
  const std::string pid = Field(gpu->HandleFields(model.checkpoint(), 0), "pid");
  std::size_t sockets = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + pid + "/fd")) {
    if (std::stoi(entry.path().filename()) <= 2) continue;
    const std::string target = std::filesystem::read_symlink(entry.path());
    CHECK(target.find("leaked") == std::string::npos);
    CHECK(target.find(model.path()) == std::string::npos);
    CHECK(target.find("/dev/fuse") == std::string::npos);
    sockets += target.starts_with("socket:") ? 1 : 0;
  }
  CHECK(sockets == 1);
  close(leaked);
}

TEST_CASE("Pinned memory has a limit and goes when nothing is loaded") {
  const Simulation simulation;
  const Model model(std::vector<std::uint64_t>(30, 5'000'000));
  Gpu gpu;
  gpu.Load(model);
  CHECK(simulation.PinnedPeak() > 0);
  CHECK(simulation.PinnedPeak() <= 128 * kMiB);
  WaitUntil([&] { return simulation.PinnedBytes() == 0; });
  gpu.CheckHolds(model);
  CHECK(simulation.Count("pageable_copies") == 0);
}

TEST_CASE("Slots are read into again only when their copies have run") {
  // Copies run late, so a slot that is used too early shows in what was loaded.
  const Simulation simulation("copy_delay_us=3000");
  const Model model(std::vector<std::uint64_t>(20, 4'100'000));
  Gpu gpu;
  gpu.Load(model);
  gpu.Verify(model);
  gpu.CheckHolds(model);
}

TEST_CASE("A hundred thousand tensors are a few copies") {
  const Simulation simulation;
  const Model model(std::vector<std::uint64_t>(100'000, 300));
  Gpu gpu;
  gpu.Load(model);
  CHECK(simulation.Count("host_to_device_copies") < 20);
  gpu.Verify(model);
  CHECK(ReadWhole(*gpu, model.checkpoint(), 77'777).second == model.bytes_of(77'777));
}

TEST_CASE("What is loaded and unloaded at random is right all the time") {
  const Simulation simulation;
  std::vector<std::uint64_t> sizes;
  std::mt19937 random(1);
  for (int i = 0; i < 60; ++i) sizes.push_back(random() % (i % 9 == 0 ? 3'000'000 : 20'000));
  const Model model(sizes);
  Gpu gpu;
  std::set<std::uint32_t> loaded;
  for (int round = 0; round < 60; ++round) {
    std::vector<std::uint32_t> in;
    std::vector<std::uint32_t> out;
    for (const std::uint32_t tensor : model.all()) {
      if (random() % 3 != 0) continue;
      (loaded.contains(tensor) ? out : in).push_back(tensor);
    }
    gpu->Unload(model.checkpoint(), out);
    for (const std::uint32_t tensor : out) loaded.erase(tensor);
    if (!in.empty()) gpu.Load(model, in);
    loaded.insert(in.begin(), in.end());
    if (!loaded.empty()) gpu.Verify(model, {loaded.begin(), loaded.end()});
    CHECK(simulation.AllocatedBytes(0) == gpu->Info().held_nbytes);
  }
  gpu->Unload(model.checkpoint(), {std::vector<std::uint32_t>(loaded.begin(), loaded.end())});
  CHECK(simulation.AllocatedBytes(0) == 0);
}

}  // namespace safetensorfs

// What the simulated driver does wrong, and what the device makes of it: the errno, the sentence,
// what is lost, that it works again, and that device memory is where it was.
#include <signal.h>
#include <unistd.h>

#include "tests/gpu/gpu.h"

namespace safetensorfs {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

Model SmallModel() { return Model({1000, 300'000, 5'000'000}); }

pid_t WorkerOf(Gpu& gpu, const Model& model) {
  const std::string fields = gpu->HandleFields(model.checkpoint(), 0);
  return std::stoi(fields.substr(fields.find("\"pid\":") + 6));
}

// After a fault that cost nothing: what was loaded is there, and nothing else.
void CheckKept(Gpu& gpu, const Simulation& simulation, const Model& kept) {
  gpu.CheckHolds(kept);
  gpu.Verify(kept);
  CHECK(gpu.losses().empty());
  CHECK(simulation.AllocatedBytes(0) == gpu->Info().held_nbytes);
}

// After a worker's end: all is gone, and the next load works.
void CheckReplaced(Gpu& gpu, Simulation& simulation, const Model& lost) {
  CHECK(ReadWhole(*gpu, lost.checkpoint(), 0).first == ESTALE);
  CHECK(gpu->Info().held_nbytes == 0);
  CHECK(gpu->SlabNumbers(lost.checkpoint()).empty());
  WaitUntil([&] { return simulation.UsedBytes(0) == 0; });
  simulation.Configure("");
  gpu.Load(lost);
  gpu.CheckHolds(lost);
}

}  // namespace

TEST_CASE("More than is free is refused before anything is allocated") {
  const Simulation simulation("memory=419430400");
  const Model kept = SmallModel();
  const Model large({100'000'000});
  Gpu gpu;
  gpu.Load(kept);
  const std::uint64_t before = simulation.UsedBytes(0);
  const std::uint64_t allocations = simulation.Count("allocations");
  const Error error = ErrorOf([&] { gpu.Load(large); });
  CHECK(error.code() == ENOMEM);
  CHECK(error.what() ==
        std::string("needs 100,663,296 bytes of device memory, 98,566,144 of 419,430,400 are "
                    "free, 6,291,456 are held by what is loaded here"));
  CHECK(simulation.Count("allocations") == allocations);
  CHECK(simulation.UsedBytes(0) == before);
  CheckKept(gpu, simulation, kept);
}

TEST_CASE("An allocation that fails half-way gives back the others") {
  Simulation simulation;
  const Model kept = SmallModel();
  const Model large(std::vector<std::uint64_t>(3, 140'000'000));
  Gpu gpu;
  gpu.Load(kept);
  const std::uint64_t before = simulation.UsedBytes(0);
  simulation.Configure("oom_at=350000000");
  const Error error = ErrorOf([&] { gpu.Load(large); });
  CHECK(error.code() == ENOMEM);
  CHECK(std::string(error.what()).find("cuMemAlloc_v2: ") != std::string::npos);
  CHECK(simulation.UsedBytes(0) == before);
  CheckKept(gpu, simulation, kept);
  simulation.Configure("");
  gpu.Load(large);
  gpu.Verify(large);
}

TEST_CASE("A cancelled load gives back what it took") {
  Simulation simulation;
  const Model kept = SmallModel();
  const Model large({60'000'000, 60'000'000});
  Gpu gpu;
  gpu.Load(kept);
  const std::uint64_t before = simulation.UsedBytes(0);
  simulation.Configure("copy_bytes_per_second=20000000");
  std::stop_source stop;
  std::jthread canceller([&] {
    WaitUntil([&] { return simulation.Count("host_to_device_bytes") > kept.nbytes() + 8 * kMiB; });
    stop.request_stop();
  });
  const Error error = ErrorOf([&] { gpu.Load(large, {}, stop.get_token()); });
  CHECK(error.code() == EINTR);
  CHECK(error.what() == std::string("cancelled"));
  CHECK(simulation.UsedBytes(0) == before);
  CHECK(simulation.Count("freed_while_copying") == 0);
  CHECK(simulation.Count("host_freed_while_copying") == 0);
  simulation.Configure("");
  CheckKept(gpu, simulation, kept);
}

TEST_CASE("A load that is cancelled before the worker is ready leaves none") {
  Simulation simulation;
  Gpu gpu;
  simulation.Configure("init_hang=1");
  const Model model = SmallModel();
  std::stop_source stop;
  std::jthread canceller([&] { stop.request_stop(); });
  CHECK(ErrorOf([&] { gpu.Load(model, {}, stop.get_token()); }).code() == EINTR);
  WaitUntil([&] { return simulation.Processes() == 0; });
  simulation.Configure("");
  gpu.Load(model);
  gpu.CheckHolds(model);
}

TEST_CASE("An error that poisons the context costs the worker, which is replaced") {
  for (const std::string call : {"cuMemcpyHtoDAsync_v2", "cuStreamSynchronize", "cuMemAlloc_v2",
                                 "cuEventQuery", "cuIpcGetMemHandle"}) {
    INFO(call);
    Simulation simulation;
    const Model kept = SmallModel();
    const Model more({3'000'000});
    Gpu gpu;
    gpu.Load(kept);
    simulation.Configure("sticky_call=" + call);
    const Error error = ErrorOf([&] { gpu.Load(more); });
    CHECK(error.code() == EIO);
    CHECK(std::string(error.what()).find("CUDA_ERROR_ILLEGAL_ADDRESS") != std::string::npos);
    CHECK(std::string(error.what()).starts_with(call + ": "));
    CHECK(gpu.losses() == std::vector<std::string>{error.what()});
    CheckReplaced(gpu, simulation, kept);
  }
}

TEST_CASE("A poisoned context also shows when memory is freed or verified") {
  Simulation simulation;
  const Model model = SmallModel();
  for (const std::string call : {"cuMemFree_v2", "cuMemcpyDtoHAsync_v2"}) {
    simulation.Configure("");
    Gpu gpu;
    gpu.Load(model);
    simulation.Configure("sticky_call=" + call);
    if (call == "cuMemFree_v2") {
      ErrorOf([&] { gpu->Unload(model.checkpoint(), model.all()); });
    } else {
      CHECK(ErrorOf([&] { gpu.Verify(model); }).code() == EIO);
    }
    CHECK(gpu.AwaitLoss().find("CUDA_ERROR_ILLEGAL_ADDRESS") != std::string::npos);
    CheckReplaced(gpu, simulation, model);
  }
}

TEST_CASE("A driver that hangs costs the worker, which is replaced") {
  for (const std::string call : {"cuMemcpyHtoDAsync_v2", "cuStreamSynchronize", "cuMemAlloc_v2"}) {
    INFO(call);
    Simulation simulation;
    const Model kept = SmallModel();
    const Model more({3'000'000});
    Gpu gpu(ShortLimits());
    gpu.Load(kept);
    simulation.Configure("hang_call=" + call);
    const Error error = ErrorOf([&] { gpu.Load(more); });
    CHECK(error.code() == EIO);
    CHECK(std::string(error.what()).starts_with("the NVIDIA driver hangs: cuM") ==
          call.starts_with("cuM"));
    CHECK(std::string(error.what()).find(call + " has not returned in ") != std::string::npos);
    CHECK(gpu.losses() == std::vector<std::string>{error.what()});
    CheckReplaced(gpu, simulation, kept);
  }
}

TEST_CASE("A load that does not end when it is cancelled is left alone, and costs nothing else") {
  Simulation simulation;
  const Model kept = SmallModel();
  const Model more({3'000'000});
  Gpu gpu(ShortLimits());
  gpu.Load(kept);
  const std::uint64_t before = simulation.UsedBytes(0);
  simulation.Configure("stall=1");
  const std::uint64_t copies = simulation.Count("call.cuMemcpyHtoDAsync_v2");
  std::stop_source stop;
  std::jthread canceller([&] {
    WaitUntil([&] { return simulation.Count("call.cuMemcpyHtoDAsync_v2") > copies; });
    stop.request_stop();
  });
  const Error error = ErrorOf([&] { gpu.Load(more, {}, stop.get_token()); });
  CHECK(error.code() == EINTR);
  CHECK(error.what() == std::string("cancelled; the worker has not let go of it yet"));
  CHECK(simulation.UsedBytes(0) > before);
  simulation.Configure("");
  WaitUntil([&] { return simulation.UsedBytes(0) == before; });
  CheckKept(gpu, simulation, kept);
  gpu.Load(more);
  gpu.CheckHolds(more);
}

TEST_CASE("A worker that dies is replaced") {
  // Not SIGSEGV, which sanitizers handle.
  for (const int signal : {9, 6}) {
    Simulation simulation;
    const Model kept = SmallModel();
    const Model more({3'000'000});
    Gpu gpu;
    gpu.Load(kept);
    simulation.Configure("crash_call=cuMemcpyHtoDAsync_v2\ncrash_signal=" + std::to_string(signal));
    const Error error = ErrorOf([&] { gpu.Load(more); });
    CHECK(error.code() == EIO);
    CHECK(error.what() ==
          std::string("the GPU's worker was killed by ") + (signal == 9 ? "SIGKILL" : "SIGABRT"));
    CHECK(gpu.losses() == std::vector<std::string>{error.what()});
    CheckReplaced(gpu, simulation, kept);
  }
}

TEST_CASE("A worker that is stopped is given up when it has to free") {
  Simulation simulation;
  const Model model = SmallModel();
  Gpu gpu(ShortLimits());
  gpu.Load(model);
  kill(WorkerOf(gpu, model), SIGSTOP);
  const Error error = ErrorOf([&] { gpu->Unload(model.checkpoint(), model.all()); });
  CHECK(error.code() == EIO);
  CHECK(error.what() == std::string("the GPU's worker freed nothing for 0 s"));
  CHECK(gpu.losses() == std::vector<std::string>{error.what()});
  CheckReplaced(gpu, simulation, model);
}

TEST_CASE("Reading back from a worker that is stopped holds up nobody") {
  const Simulation simulation;
  const Model model = SmallModel();
  Gpu gpu;
  gpu.Load(model);
  const pid_t worker = WorkerOf(gpu, model);
  kill(worker, SIGSTOP);
  // More than a socket takes.
  constexpr std::size_t kReads = 5000;
  std::atomic<std::size_t> answers = 0;
  std::atomic<std::size_t> right = 0;
  for (std::size_t i = 0; i < kReads; ++i) {
    gpu->Read(model.checkpoint(), 1, i, 100, [&, i](int error, const Pieces& pieces) {
      pieces.ForEach([&](const Piece& piece) {
        const std::string_view bytes(reinterpret_cast<const char*>(piece.memory), piece.size);
        if (error == 0 && bytes == model.bytes_of(1).substr(i, 100)) ++right;
      });
      ++answers;
    });
  }
  CHECK(answers == 0);
  kill(worker, SIGCONT);
  WaitUntil([&] { return answers == kReads; });
  CHECK(right == kReads);
}

TEST_CASE("A worker that dies at rest is noticed") {
  Simulation simulation;
  const Model model = SmallModel();
  Gpu gpu;
  gpu.Load(model);
  kill(WorkerOf(gpu, model), SIGKILL);
  CHECK(gpu.AwaitLoss() == "the GPU's worker was killed by SIGKILL");
  CheckReplaced(gpu, simulation, model);
}

TEST_CASE("An error that does not last costs only the load") {
  for (const std::string call : {"cuMemcpyHtoDAsync_v2", "cuEventRecord", "cuEventQuery",
                                 "cuStreamSynchronize", "cuIpcGetMemHandle"}) {
    INFO(call);
    Simulation simulation;
    const Model kept = SmallModel();
    const Model more({9'000'000});
    Gpu gpu;
    gpu.Load(kept);
    const std::uint64_t before = simulation.UsedBytes(0);
    simulation.Configure("fail_call=" + call + ":1:1");
    const Error error = ErrorOf([&] { gpu.Load(more); });
    CHECK(error.code() == EIO);
    CHECK(std::string(error.what()).starts_with(call + ": "));
    CHECK(simulation.UsedBytes(0) == before);
    simulation.Configure("");
    CheckKept(gpu, simulation, kept);
  }
}

TEST_CASE("Without IPC, loading and reading work, and handles say why not") {
  const Simulation simulation("ipc=0");
  const Model model = SmallModel();
  Gpu gpu;
  gpu.Load(model);
  CheckKept(gpu, simulation, model);
  const std::string fields = gpu->HandleFields(model.checkpoint(), 0);
  CHECK(fields.find("\"export\":\"none\",\"reason\":\"CUDA shares no memory between processes "
                    "here: cuIpcGetMemHandle: ") != std::string::npos);
  CHECK(fields.find("ipc_handle") == std::string::npos);
}

TEST_CASE("In exclusive mode and on integrated GPUs handles say why not") {
  for (const std::string config : {"compute_mode=3", "integrated=1"}) {
    const Simulation simulation(config);
    const Model model = SmallModel();
    Gpu gpu;
    gpu.Load(model);
    CheckKept(gpu, simulation, model);
    const std::string fields = gpu->HandleFields(model.checkpoint(), 0);
    CHECK(fields.find(config == "integrated=1" ? "integrated GPUs" : "exclusive-process mode") !=
          std::string::npos);
    CHECK(fields.find("ipc_handle") == std::string::npos);
  }
}

TEST_CASE("Without registered or pinned memory, loading works all the same") {
  {
    const Simulation simulation("register=0");
    const Model model = SmallModel();
    Gpu gpu;
    gpu.Load(model);
    CHECK(simulation.PinnedPeak() > 0);
    CHECK(simulation.Count("pageable_copies") == 0);
    CheckKept(gpu, simulation, model);
  }
  const Simulation simulation("register=0\nhost_alloc=0");
  const Model model = SmallModel();
  Gpu gpu;
  gpu.Load(model);
  CHECK(simulation.PinnedPeak() == 0);
  CHECK(simulation.Count("pageable_copies") > 0);
  CheckKept(gpu, simulation, model);
}

TEST_CASE("A context that cannot be made is an error of the load, again and again") {
  Simulation simulation("compute_mode=2");
  const Model model = SmallModel();
  Gpu gpu;
  for (int i = 0; i < 2; ++i) {
    const Error error = ErrorOf([&] { gpu.Load(model); });
    CHECK(error.code() == ENODEV);
    CHECK(std::string(error.what()).starts_with("cuDevicePrimaryCtxRetain: "));
  }
  simulation.Configure("context_bytes=99999999999");
  CHECK(ErrorOf([&] { gpu.Load(model); }).code() == ENOMEM);
  simulation.Configure("");
  gpu.Load(model);
  CheckKept(gpu, simulation, model);
}

TEST_CASE("A GPU that is another one by now is not loaded to") {
  Simulation simulation;
  const Model model = SmallModel();
  Gpu gpu;
  simulation.Configure("uuid.0=11111111-2222-3333-4444-555555555555");
  const Error error = ErrorOf([&] { gpu.Load(model); });
  CHECK(error.code() == ENODEV);
  CHECK(std::string(error.what())
            .starts_with("the GPU is GPU-11111111-2222-3333-4444-555555555555 now, it was GPU-"));
}

TEST_CASE("A source that is cut fails the load and loses nothing") {
  const Simulation simulation;
  const Model kept = SmallModel();
  const Model cut({9'000'000});
  Gpu gpu;
  gpu.Load(kept);
  const std::uint64_t before = simulation.UsedBytes(0);
  REQUIRE(truncate(cut.path().c_str(), 5'000'000) == 0);
  const Error error = ErrorOf([&] { gpu.Load(cut); });
  CHECK(error.code() == EIO);
  // Which of the windows beyond the end is read first is not known.
  const std::string sentence = error.what();
  CHECK(sentence.starts_with(cut.path() + ": cannot be read from byte "));
  CHECK(sentence.ends_with(" on: the file ends there"));
  CHECK(simulation.UsedBytes(0) == before);
  CheckKept(gpu, simulation, kept);
}

TEST_CASE("Why there are no devices is said") {
  const auto missing = [](std::chrono::milliseconds deadline = std::chrono::seconds(10)) {
    const FoundDevices found = CudaDeviceFinder({}, deadline)({});
    CHECK(found.devices.empty());
    return found.missing;
  };
  {
    const Simulation simulation("devices=0");
    CHECK(missing() == "no GPU: the NVIDIA driver sees none (is CUDA_VISIBLE_DEVICES set?)");
  }
  {
    const Simulation simulation("init_error=803");
    CHECK(missing().starts_with("the NVIDIA driver does not work: cuInit: "));
  }
  {
    const Simulation simulation("init_hang=1");
    CHECK(missing(std::chrono::seconds(1)) == "the NVIDIA driver did not answer in 1 s");
    WaitUntil([&] { return simulation.Processes() == 0; });
  }
  {
    const Simulation simulation("crash_call=cuInit");
    CHECK(missing() == "the process that looks for GPUs was killed by SIGKILL");
  }
  const std::string path = std::getenv("LD_LIBRARY_PATH");
  setenv("LD_LIBRARY_PATH", "/nowhere", 1);
  CHECK(missing().starts_with("no NVIDIA driver: libcuda.so.1: "));
  setenv("LD_LIBRARY_PATH", path.c_str(), 1);
}

}  // namespace safetensorfs

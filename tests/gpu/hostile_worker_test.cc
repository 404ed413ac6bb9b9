// The worker may run as another user (-o uid=), who may put what they like in its place: the daemon
// gets a sentence to show, and goes on.
#include "tests/gpu/hostile_worker.h"

#include <algorithm>
#include <cstdlib>

#include "tests/gpu/gpu.h"

namespace safetensorfs {
namespace {

class Hostile {
 public:
  explicit Hostile(const std::string& how) { setenv(kHostileWorker, how.c_str(), 1); }
  Hostile(const Hostile&) = delete;
  Hostile& operator=(const Hostile&) = delete;
  ~Hostile() { unsetenv(kHostileWorker); }
};

// One line for a terminal, however long a line was sent.
void CheckIsSentence(const std::string& text) {
  CHECK(!text.empty());
  CHECK(text.size() < 1500);
  CHECK(std::ranges::none_of(text, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < ' ' || byte == 0x7f || byte == 0xff;
  }));
}

void CheckWorks(Gpu& gpu, const Model& model) {
  gpu.Load(model);
  gpu.CheckHolds(model);
}

}  // namespace

TEST_CASE("A worker that does not speak as one fails a load, and is replaced") {
  const auto [how, sentence] = GENERATE(table<std::string, std::string>({
      {"noise", "the GPU's worker speaks nonsense: a frame of 5,859,553,999,884,210,513 bytes"},
      {"a huge frame", "the GPU's worker speaks nonsense: a frame of 34,359,738,368 bytes"},
      {"half a frame", "the GPU's worker ended with status 0"},
      {"half a message", "the GPU's worker speaks nonsense: a message is cut"},
      {"a huge count", "the GPU's worker speaks nonsense: a message is cut"},
      {"no greeting", "\\n"},
      {"last words", "\\n"},
      {"an end", "the GPU's worker ended with status 3"},
      {"failure", "\\n"},
      {"handles", "the GPU's worker speaks nonsense"},
  }));
  INFO(how);
  const Simulation simulation;
  const Model model({1000, 300'000});
  Gpu gpu(ShortLimits());
  {
    const Hostile hostile(how);
    const Error error = ErrorOf([&] { gpu.Load(model); });
    CHECK(error.code() == EIO);
    CHECK(std::string(error.what()).find(sentence) == 0);
    CheckIsSentence(error.what());
    CHECK(gpu->Info().held_nbytes == 0);
    CHECK(ReadWhole(*gpu, model.checkpoint(), 0).first == ESTALE);
  }
  for (const std::string& reason : gpu.losses()) CheckIsSentence(reason);
  if (how == "failure" || how == "handles") return;  // that worker lives on
  CheckWorks(gpu, model);
}

TEST_CASE("A worker that says more than it is asked is not heeded") {
  const std::string how = GENERATE("strange ids", "no handles");
  INFO(how);
  const Simulation simulation;
  const Model model({1000, 300'000});
  Gpu gpu;
  {
    const Hostile hostile(how);
    Progress progress;
    progress.total = model.nbytes();
    gpu->Load(model.checkpoint(), model.all(), {}, progress, {});
    CHECK(progress.done == model.nbytes());
    CheckIsSentence(gpu->HandleFields(model.checkpoint(), 0));
  }
  gpu->Unload(model.checkpoint(), model.all());
}

TEST_CASE("A worker that has done more than there is to do has done all") {
  const Simulation simulation;
  const Model model({1000, 300'000});
  Gpu gpu(ShortLimits());
  const Hostile hostile("progress");
  Progress progress;
  progress.total = model.nbytes();
  std::stop_source stop;
  std::jthread canceller([&] {
    WaitUntil([&] { return progress.done > 0; });
    CHECK(progress.done == model.nbytes());
    stop.request_stop();
  });
  const Error error =
      ErrorOf([&] { gpu->Load(model.checkpoint(), model.all(), {}, progress, stop.get_token()); });
  CHECK(error.code() == EINTR);
}

TEST_CASE("A worker that reads back too much gives no more than was asked for") {
  const std::string how = GENERATE("too much", "read errors");
  INFO(how);
  const Simulation simulation;
  const Model model({1000, 300'000});
  Gpu gpu;
  const Hostile hostile(how);
  gpu.Load(model);
  const auto [error, bytes] = ReadWhole(*gpu, model.checkpoint(), 1);
  CHECK(error == (how == "read errors" ? EIO : 0));
  CHECK(bytes.size() == (how == "read errors" ? 0 : 300'000));
}

TEST_CASE("A worker that finds a difference in a tensor that is not there speaks nonsense") {
  const Simulation simulation;
  const Model model({1000, 300'000});
  Gpu gpu;
  const Hostile hostile("verify");
  gpu.Load(model);
  const Error error = ErrorOf([&] { gpu.Verify(model); });
  CHECK(error.code() == EIO);
  CHECK(error.what() == std::string("the GPU's worker speaks nonsense"));
}

TEST_CASE("What a cancelled load has loaded after all is freed") {
  const Simulation simulation;
  const Model model({1000, 2000, 3000});
  Gpu gpu(ShortLimits());
  const Hostile hostile("late");
  gpu.Load(model, {0});
  std::stop_source stop;
  stop.request_stop();
  CHECK(ErrorOf([&] { gpu.Load(model, {1}, stop.get_token()); }).code() == EINTR);
  ErrorOf([&] { gpu.Load(model, {2}); });  // done, or lost with the worker
  CHECK(gpu.AwaitLoss() == "the GPU's worker ended with status 7");
}

}  // namespace safetensorfs

#include "tests/gpu/simulation.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>

#include "core/base/unique_fd.h"
#include "tests/simulated_cuda/state_file.h"

namespace safetensorfs {
namespace {

using simulated_cuda::ProcessEntry;
using simulated_cuda::StateLayout;

// The shared state, null before any process has called the driver.
class State {
 public:
  explicit State(const std::string& path) {
    const UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!fd) return;
    void* const address =
        mmap(nullptr, sizeof(StateLayout), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (address != MAP_FAILED) layout_ = static_cast<StateLayout*>(address);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (layout_ != nullptr) munmap(layout_, sizeof(StateLayout));
  }
  StateLayout* get() const { return layout_; }

 private:
  StateLayout* layout_ = nullptr;
};

// Field 22 of /proc/PID/stat, 0 for a process that is gone or has ended.
std::uint64_t StartTicks(std::uint64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  std::size_t at = text.rfind(')');
  if (at == text.npos || text[at + 2] == 'Z' || text[at + 2] == 'X') return 0;
  for (int field = 2; field < 22 && at != text.npos; ++field) at = text.find(' ', at + 1);
  return at != text.npos ? std::strtoull(text.c_str() + at, nullptr, 10) : 0;
}

std::uint64_t SumOfLiving(const std::string& folder,
                          const std::function<std::uint64_t(const ProcessEntry&)>& value) {
  const State state(folder + "/state");
  if (state.get() == nullptr) return 0;
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < state.get()->processes_used; ++i) {
    const ProcessEntry& entry = state.get()->processes[i];
    const std::uint64_t pid = entry.pid;
    if (pid != 0 && StartTicks(pid) == entry.start_ticks) sum += value(entry);
  }
  return sum;
}

}  // namespace

Simulation::Simulation(std::string_view config) {
  Configure(config);
  setenv("SIMULATED_CUDA", folder_.path().c_str(), 1);
}

Simulation::~Simulation() { unsetenv("SIMULATED_CUDA"); }

void Simulation::Configure(std::string_view config) {
  folder_.Write("config.new", "devices=2\n" + std::string(config) + "\n");
  std::rename((folder_ / "config.new").c_str(), (folder_ / "config").c_str());
  const State state(folder_ / "state");
  if (state.get() != nullptr) ++state.get()->configuration;  // seen at once
}

std::uint64_t Simulation::Count(std::string_view counter) const {
  const State state(folder_ / "state");
  if (state.get() == nullptr) return 0;
  for (const auto& named : state.get()->counters) {
    if (counter == named.name.data()) return named.value;
  }
  std::abort();  // no such counter
}

std::uint64_t Simulation::UsedBytes(std::size_t device) const {
  return SumOfLiving(folder_.path(), [device](const ProcessEntry& entry) {
    return entry.allocated[device] + entry.context[device];
  });
}

std::uint64_t Simulation::AllocatedBytes(std::size_t device) const {
  return SumOfLiving(folder_.path(), [device](const ProcessEntry& entry) -> std::uint64_t {
    return entry.allocated[device];
  });
}

std::uint64_t Simulation::PinnedBytes() const {
  return SumOfLiving(folder_.path(),
                     [](const ProcessEntry& entry) -> std::uint64_t { return entry.pinned; });
}

std::uint64_t Simulation::PinnedPeak() const {
  return SumOfLiving(folder_.path(),
                     [](const ProcessEntry& entry) -> std::uint64_t { return entry.pinned_peak; });
}

std::size_t Simulation::Processes() const {
  return SumOfLiving(folder_.path(), [](const ProcessEntry&) { return 1; });
}

}  // namespace safetensorfs

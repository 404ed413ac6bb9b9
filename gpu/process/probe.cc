#include "gpu/process/probe.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "gpu/driver/driver.h"
#include "gpu/process/channel.h"

namespace safetensorfs {
namespace {

Probed Probe() {
  Probed probed;
  try {
    CallWatch watch;
    const Driver driver(watch);
    const CUresult result = driver.init.Try(0);
    if (result == CUDA_ERROR_NO_DEVICE) {
      return {"no GPU: the NVIDIA driver sees none (is CUDA_VISIBLE_DEVICES set?)", {}};
    }
    if (result != CUDA_SUCCESS) {
      return {"the NVIDIA driver does not work: cuInit: " + driver.TextOf(result), {}};
    }
    int count = 0;
    driver.device_get_count(&count);
    for (int i = 0; i < count; ++i) probed.devices.push_back(FactsOf(driver, i));
    if (count == 0) probed.reason = "no GPU: the NVIDIA driver counts 0 devices";
  } catch (const Error& error) {
    probed.reason = error.what();
  }
  return probed;
}

// More than any number of devices needs.
constexpr std::uint64_t kMaxAnswer = 1 << 20;

// Ends a channel at the deadline, or when told to stop, unless it goes before.
class Deadline {
 public:
  Deadline(Channel& channel, std::chrono::milliseconds limit, std::stop_token stop)
      : stopped_(stop, [this] { Notify(); }),
        thread_([this, &channel, limit, stop](std::stop_token gone) {
          std::unique_lock lock(mutex_);
          changed_.wait_for(lock, gone, limit, [&stop] { return stop.stop_requested(); });
          if (gone.stop_requested()) return;
          is_over_ = true;
          channel.ShutDown();
        }) {}

  bool is_over() const { return is_over_; }

 private:
  void Notify() {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::atomic<bool> is_over_ = false;
  std::stop_callback<std::function<void()>> stopped_;
  std::jthread thread_;
};

}  // namespace

int RunProbe() {
  // A driver may hang, and whoever waits for this may be gone.
  alarm(120);
  Channel channel(UniqueFd(GpuProcess::kSocket), {});
  channel.Send(0, Encode(Probe()));
  return 0;
}

Probed ProbeDevices(const std::optional<Identity>& identity, std::chrono::milliseconds deadline,
                    std::stop_token stop) {
  try {
    GpuProcess process({"probe"}, identity);
    Channel channel(process.TakeSocket(), {kMaxAnswer});
    const Deadline over(channel, deadline, stop);
    if (const auto frame = channel.Receive()) return Decode<Probed>(frame->body);
    if (stop.stop_requested()) return {"the search for GPUs was cancelled", {}};
    if (over.is_over()) {
      return {
          "the NVIDIA driver did not answer in " + std::to_string(deadline.count() / 1000) + " s",
          {}};
    }
    const auto end = process.WaitForEnd(std::chrono::seconds(2));
    return {"the process that looks for GPUs " + end.value_or("closed its socket"), {}};
  } catch (const Error& error) {
    return {std::string("the search for GPUs failed: ") + error.what(), {}};
  }
}

}  // namespace safetensorfs

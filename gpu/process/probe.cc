#include "gpu/process/probe.h"

#include <poll.h>

#include "core/base/text.h"
#include "gpu/driver/context.h"
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
    for (int i = 0; i < count; ++i) {
      const DeviceFacts facts = FactsOf(driver, i);
      probed.devices.push_back(
          {facts.uuid, facts.product, facts.pci_bus, facts.no_export, facts.total_nbytes});
    }
    if (count == 0) probed.reason = "no GPU: the NVIDIA driver counts 0 devices";
  } catch (const Error& error) {
    probed.reason = error.what();
  }
  return probed;
}

// Waits until there is something to receive; false at the deadline or when told to stop.
bool Await(int socket, std::chrono::milliseconds deadline, const std::stop_token& stop) {
  constexpr std::chrono::milliseconds kStep(50);
  const auto end = std::chrono::steady_clock::now() + deadline;
  while (!stop.stop_requested() && std::chrono::steady_clock::now() < end) {
    pollfd ready = {socket, POLLIN, 0};
    if (poll(&ready, 1, static_cast<int>(kStep.count())) > 0) return true;
  }
  return false;
}

}  // namespace

int RunProbe() {
  Channel channel{UniqueFd(GpuProcess::kSocket)};
  channel.Send(0, Encode(Probe()));
  return 0;
}

Probed ProbeDevices(const std::optional<Identity>& identity, std::chrono::milliseconds deadline,
                    std::stop_token stop) {
  try {
    GpuProcess process({"probe"}, identity);
    Channel channel(process.TakeSocket());
    if (!Await(channel.fd(), deadline, stop)) {
      return {stop.stop_requested() ? "the search for GPUs was cancelled"
                                    : "the NVIDIA driver did not answer in " +
                                          std::to_string(deadline.count() / 1000) + " s",
              {}};
    }
    if (const auto frame = channel.Receive()) return Decode<Probed>(frame->body);
    const auto end = process.WaitForEnd(std::chrono::seconds(2));
    return {"the process that looks for GPUs " + end.value_or("closed its socket"), {}};
  } catch (const Error& error) {
    return {error.what(), {}};
  }
}

}  // namespace safetensorfs

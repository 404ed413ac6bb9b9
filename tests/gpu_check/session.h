#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/control/device_host.h"
#include "core/control/tensor_selection.h"
#include "gpu/device/cuda_device.h"
#include "tests/gpu_check/json_line.h"

namespace safetensorfs {

/// The cuda devices of a checkpoint without a mount. Requests come on stdin, a line each, and are
/// answered on stdout by a line of JSON with the request's number as "id":
///
///   ID devices                  -> "devices", "missing"
///   ID load DEVICE PATTERN...   a line of the control language (unload and verify too)
///                               -> "error" (0 or a positive errno), "text", "seconds"
///   ID buffered load ...        the same, of which several devices are said to do it at once
///   ID progress JOB             JOB: the number of the request that began it
///                               -> "done_nbytes", "total_nbytes"
///   ID cancel JOB               -> nothing; the job's own answer says EINTR
///   ID slabs DEVICE             -> "slabs", what slabs/<id> holds of each
///   ID handle DEVICE TENSOR     -> "handle", what handles/<tensor> holds
///   ID lease DEVICE TENSOR      -> "lease"; ID release DEVICE LEASE -> nothing
///   ID read DEVICE TENSOR OFFSET NBYTES -> "error", "hex"
class Session {
 public:
  /// The source holds one checkpoint. Throws Error.
  Session(const std::string& source, CudaDeviceOptions options);

  /// Returns when stdin has ended and every request has been answered.
  void Run();

 private:
  struct RunningJob {
    DeviceHost* host;
    std::shared_ptr<Job> job;
  };

  void Take(std::uint64_t id, std::string_view words);
  void Submit(std::uint64_t id, std::string_view line, const LoadHints& hints);
  std::string Slabs(const DeviceHost& host) const;
  void Read(std::uint64_t id, DeviceHost& host, const LoadedTensors::Instance& instance,
            std::uint64_t offset, std::uint64_t nbytes);
  void Reply(std::uint64_t id, JsonLine line);

  const TensorIndex& index() const { return source_->checkpoints[0].checkpoint->index; }
  DeviceHost& HostAt(std::string_view name) const;
  LoadedTensors::Instance Find(const DeviceHost& host, std::string_view tensor) const;

  std::unique_ptr<SourceTree> source_;
  std::unique_ptr<TensorSelector> selector_;
  std::string missing_;
  std::mutex printing_;
  std::map<std::uint64_t, RunningJob> jobs_;
  std::vector<std::unique_ptr<DeviceHost>> hosts_;  // last: their jobs use the rest
};

}  // namespace safetensorfs

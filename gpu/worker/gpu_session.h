#pragma once

#include <atomic>
#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "gpu/driver/context.h"
#include "gpu/process/message.h"
#include "gpu/worker/slab_table.h"
#include "gpu/worker/staging.h"
#include "gpu/worker/worker.h"

namespace safetensorfs {

/// A GPU in use: the driver, a context and the slabs in it, and the jobs that fill, compare and
/// free them. Jobs are for the thread that made it, one at a time.
class GpuSession {
 public:
  /// `watch` must outlive it. Throws Error (ENODEV, ENOMEM, EIO).
  GpuSession(const WorkerOptions& options, CallWatch& watch);

  /// Each returns what came of the job, and throws nothing. `nbytes_done` counts up meanwhile.
  Done Load(const LoadJob& job, std::vector<SourceReader> sources,
            std::atomic<std::uint64_t>& nbytes_done, std::stop_token stop);
  Done Verify(const VerifyJob& job, std::vector<SourceReader> sources,
              std::atomic<std::uint64_t>& nbytes_done, std::stop_token stop);

  /// Why nothing works any more; empty while it does. Asks after a failure.
  std::string death() const { return death_; }

  /// Gives back the pinned memory, until the next job.
  void ReleaseStaging() { staging_.Release(); }

  MemoryNow Memory() const;

  const Driver& driver() const { return driver_; }
  const Context& context() const { return context_; }
  SlabTable& slabs() { return slabs_; }

 private:
  template <typename Work>
  Done Run(std::uint64_t id, const Work& work);

  const Driver driver_;
  const Context context_;
  SlabTable slabs_;
  Staging staging_;
  std::string death_;
};

}  // namespace safetensorfs

#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>

#include "gpu/driver/pinned_buffer.h"
#include "gpu/driver/stream.h"
#include "gpu/worker/gpu_session.h"

namespace safetensorfs {

/// Reads slabs back, in a thread of its own, so that readers of files do not wait for loads; and
/// tells how much memory is free, which changes without us.
class ReadBackThread {
 public:
  using BytesReply = std::function<void(const Bytes& reply, std::string_view bytes)>;
  using MemoryReport = std::function<void(const MemoryNow&)>;

  /// Both functions are called from its thread. `session` must outlive it.
  ReadBackThread(const GpuSession& session, BytesReply reply, MemoryReport report);

  void Submit(const ReadBack& request);

 private:
  void Run(std::stop_token stop);
  void Serve(const ReadBack& request);
  std::string_view Copy(const ReadBack& request);
  void ReportMemory();

  const GpuSession& session_;
  const BytesReply reply_;
  const MemoryReport report_;
  // Its thread only; made at the first request, given back when none comes for a while.
  std::unique_ptr<PinnedBuffer> buffer_;
  std::unique_ptr<Stream> stream_;
  MemoryNow reported_;

  std::mutex mutex_;  // guards requests_
  std::condition_variable_any submitted_;
  std::deque<ReadBack> requests_;
  std::jthread thread_;
};

}  // namespace safetensorfs

#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <variant>

#include "gpu/driver/pinned_buffer.h"
#include "gpu/driver/stream.h"
#include "gpu/worker/gpu_session.h"

namespace safetensorfs {

/// What must not wait for loads and what those wait for: reading slabs back, freeing them, and
/// telling how much memory is free, which changes without us. In a thread of its own.
class ServiceThread {
 public:
  /// Called from its thread.
  struct Replies {
    std::function<void(const Bytes& reply, std::string_view bytes)> bytes;
    std::function<void(const Done& done)> freed;
    std::function<void(const MemoryNow& now)> memory;
    std::function<void(const std::string& reason)> died;  // the context has
  };

  /// `session` must outlive it.
  ServiceThread(GpuSession& session, Replies replies);

  void Submit(const ReadBack& request) { Push(request); }
  void Submit(const FreeJob& request) { Push(request); }

 private:
  using Request = std::variant<ReadBack, FreeJob>;

  void Push(Request request);
  void Run(std::stop_token stop);
  void Serve(const ReadBack& request);
  void Serve(const FreeJob& request);
  std::string_view Copy(const ReadBack& request);
  void ReportMemory();

  GpuSession& session_;
  const Replies replies_;
  // Its thread only; made at the first request, given back when none comes for a while.
  std::unique_ptr<PinnedBuffer> buffer_;
  std::unique_ptr<Stream> stream_;
  MemoryNow reported_;

  std::mutex mutex_;  // guards requests_
  std::condition_variable_any submitted_;
  std::deque<Request> requests_;
  std::jthread thread_;
};

}  // namespace safetensorfs

#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <thread>

#include "core/device/device.h"
#include "gpu/process/channel.h"
#include "gpu/process/gpu_process.h"
#include "gpu/process/message.h"

namespace safetensorfs {

/// The daemon's side of a worker: its process, and what is asked of it. Thread-safe.
class WorkerConnection {
 public:
  struct Options {
    std::vector<std::string> words;  // for the process
    std::optional<Identity> identity;
    /// How long a cancelled job is waited for.
    std::chrono::milliseconds cancel_limit;
    /// How long the worker may take to get ready.
    std::chrono::milliseconds start_limit;
    /// How long it may take to free slabs, which waits for nothing.
    std::chrono::milliseconds free_limit;
  };
  /// Called once, from a thread of the connection's own, when the worker ended or was killed
  /// without Retire(). Must not destroy the connection.
  using Ended = std::function<void(const std::string& reason)>;

  /// Starts the process. Throws Error.
  WorkerConnection(const Options& options, Ended ended);
  WorkerConnection(const WorkerConnection&) = delete;
  WorkerConnection& operator=(const WorkerConnection&) = delete;
  ~WorkerConnection();

  /// Waits until the worker is ready. Throws Error: what kept it from that, EINTR once `stop` is
  /// requested.
  Hello AwaitHello(std::stop_token stop);

  /// Sends files that the next job reads; they must outlive the connection.
  void SendSources(std::span<const SourceFile* const> sources);
  /// Runs a job: sends it and waits for its end. Throws Error where the job failed, EINTR where it
  /// was cancelled, EIO where the worker ended. A job that does not end when it is cancelled, since
  /// its source hangs, is left to the worker; what comes of it after all is freed.
  template <typename Job>
  Done Run(MessageKind kind, Job job, Progress* progress, std::stop_token stop);

  /// Reads back, without waiting for anything. `reply` is called once, from another thread or,
  /// where the worker is gone, from this one.
  void Read(ReadBack request, Device::ReadReply reply);

  /// What the worker said last of its memory.
  std::optional<MemoryNow> memory() const;

  /// Ends the worker, which nothing is asked of any more, without calling `ended`.
  void Retire();

 private:
  struct Pending {
    Progress* progress = nullptr;
    std::optional<Done> done;
    bool is_abandoned = false;
    std::vector<std::uint64_t> slabs;  // that a load makes
  };

  struct PendingRead {
    Device::ReadReply reply;
    std::uint64_t nbytes = 0;
  };
  struct Outgoing {
    MessageKind kind;
    std::string body;
    std::vector<int> fds;
  };

  void Post(Outgoing frame);
  void SendAll();
  void ReceiveAll();
  void Take(const Frame& frame);
  void End(const std::string& reason);
  Done Await(std::uint64_t id, std::stop_token stop);
  Done AwaitFreed(std::uint64_t id);
  void Finish(Done done);
  void Break(const std::string& reason);

  const std::chrono::milliseconds cancel_limit_;
  const std::chrono::milliseconds start_limit_;
  const std::chrono::milliseconds free_limit_;
  const Ended ended_;
  GpuProcess process_;
  Channel channel_;

  mutable std::mutex mutex_;  // guards what follows; never held while something is sent or replied
  std::deque<Outgoing> outgoing_;
  std::condition_variable_any changed_;
  std::map<std::uint64_t, Pending> pending_;
  std::map<std::uint64_t, PendingRead> reads_;
  std::optional<Hello> hello_;
  std::optional<MemoryNow> memory_;
  std::uint64_t next_id_ = 1;
  std::string last_words_;  // why the worker ended, if it said so
  std::string complaint_;   // why it was killed, if it was
  std::optional<std::string> end_;
  bool is_retired_ = false;

  std::thread receiver_;
  std::thread sender_;  // so that nobody waits for a worker that takes nothing
};

}  // namespace safetensorfs

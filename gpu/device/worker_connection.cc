#include "gpu/device/worker_connection.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"

namespace safetensorfs {
namespace {

// A sentence of the worker's, whatever it says.
std::string Sentence(const std::string& text) { return Printable(text, 1000); }

std::vector<std::uint64_t> SlabsOf(const LoadJob& job) {
  std::vector<std::uint64_t> numbers;
  for (const SlabSize& slab : job.slabs) numbers.push_back(slab.number);
  return numbers;
}
template <typename Job>
std::vector<std::uint64_t> SlabsOf(const Job&) {
  return {};
}

}  // namespace

WorkerConnection::WorkerConnection(const Options& options, Ended ended)
    : cancel_limit_(options.cancel_limit),
      start_limit_(options.start_limit),
      ended_(std::move(ended)),
      process_(options.words, options.identity),
      channel_(process_.TakeSocket()),
      receiver_([this] { ReceiveAll(); }) {}

WorkerConnection::~WorkerConnection() {
  Retire();
  receiver_.join();
}

void WorkerConnection::Retire() {
  {
    const std::lock_guard lock(mutex_);
    is_retired_ = true;
  }
  channel_.ShutDown();
}

// The worker is of no use any more.
void WorkerConnection::Break(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (last_words_.empty()) last_words_ = reason;
  }
  process_.Kill();
  // One that hangs in the driver may not even die; its socket need not be waited for.
  channel_.ShutDown();
}

Hello WorkerConnection::AwaitHello(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, stop, start_limit_, [this] { return hello_ || end_; })) {
    if (stop.stop_requested()) throw Error(EINTR, "cancelled");
    throw Error(EIO, "the GPU's worker did not get ready in " +
                         std::to_string(start_limit_.count() / 1000) + " s");
  }
  if (!hello_) throw Error(EIO, *end_);
  if (hello_->error != 0) throw Error(std::abs(hello_->error), Sentence(hello_->reason));
  return *hello_;
}

void WorkerConnection::SendSources(std::span<const SourceFile* const> sources) {
  while (!sources.empty()) {
    const auto part = sources.first(std::min(sources.size(), Channel::kMaxFds));
    sources = sources.subspan(part.size());
    Sources message;
    std::vector<int> fds;
    for (const SourceFile* source : part) {
      message.paths.push_back(source->path());
      fds.push_back(source->fd());
    }
    channel_.Send(static_cast<std::uint32_t>(MessageKind::kSources), Encode(message), {}, fds);
  }
}

template <typename Job>
Done WorkerConnection::Run(MessageKind kind, Job job, Progress* progress, std::stop_token stop) {
  {
    const std::lock_guard lock(mutex_);
    if (end_) throw Error(EIO, *end_);
    job.id = next_id_++;
    Pending& pending = pending_[job.id];
    pending.progress = progress;
    pending.slabs = SlabsOf(job);
  }
  try {
    channel_.Send(static_cast<std::uint32_t>(kind), Encode(job));
  } catch (const Error&) {
    // The receiver knows by now, or soon, and says why.
    Break("did not take a job");
  }
  Done done = Await(job.id, stop);
  if (done.error != 0) throw Error(std::abs(done.error), Sentence(done.reason));
  return done;
}

template Done WorkerConnection::Run(MessageKind, LoadJob, Progress*, std::stop_token);
template Done WorkerConnection::Run(MessageKind, VerifyJob, Progress*, std::stop_token);
template Done WorkerConnection::Run(MessageKind, FreeJob, Progress*, std::stop_token);

Done WorkerConnection::Await(std::uint64_t id, std::stop_token stop) {
  std::unique_lock lock(mutex_);
  Pending& pending = pending_[id];
  const auto is_done = [&pending] { return pending.done.has_value(); };
  if (!changed_.wait(lock, stop, is_done)) {
    lock.unlock();
    try {
      channel_.Send(static_cast<std::uint32_t>(MessageKind::kCancel), Encode(id));
    } catch (const Error&) {
      Break("did not take a cancellation");
    }
    lock.lock();
    if (!changed_.wait_for(lock, cancel_limit_, is_done)) {
      // Not killed: that would cost everything else that is loaded.
      pending.is_abandoned = true;
      pending.progress = nullptr;
      throw Error(EINTR, "cancelled; the worker has not let go of it yet");
    }
  }
  Done done = std::move(*pending.done);
  pending_.erase(id);
  return done;
}

void WorkerConnection::Read(ReadBack request, Device::ReadReply reply) {
  {
    const std::lock_guard lock(mutex_);
    request.id = next_id_++;
    if (!end_) reads_.emplace(request.id, std::exchange(reply, nullptr));
  }
  if (reply) return reply(EIO, Pieces());
  try {
    channel_.Send(static_cast<std::uint32_t>(MessageKind::kRead), Encode(request));
  } catch (const Error&) {
    Break("did not take a read");
  }
}

std::optional<MemoryNow> WorkerConnection::memory() const {
  const std::lock_guard lock(mutex_);
  return end_ ? std::nullopt : memory_;
}

void WorkerConnection::ReceiveAll() {
  try {
    while (const auto frame = channel_.Receive()) Take(*frame);
  } catch (const std::exception& error) {
    // The worker may run as another user, who may do with it as they like: not with us.
    Break(error.what());
  }
  // By now it has ended, or ends of the closed socket.
  channel_.ShutDown();
  const auto end = process_.WaitForEnd(std::chrono::seconds(2));
  End(end.value_or("does not end"));
}

void WorkerConnection::Take(const Frame& frame) {
  std::string_view tail;
  switch (static_cast<MessageKind>(frame.kind)) {
    case MessageKind::kBytes: {
      const auto message = Decode<Bytes>(frame.body, &tail);
      Device::ReadReply reply;
      {
        const std::lock_guard lock(mutex_);
        if (auto read = reads_.extract(message.id)) reply = std::move(read.mapped());
      }
      Pieces pieces;
      pieces.text() = tail;
      if (reply) reply(message.error, pieces);
      return;
    }
    case MessageKind::kProgress: {
      const auto message = Decode<JobProgress>(frame.body);
      const std::lock_guard lock(mutex_);
      const auto at = pending_.find(message.id);
      if (at != pending_.end() && at->second.progress != nullptr) {
        at->second.progress->done = message.nbytes_done;
      }
      return;
    }
    case MessageKind::kHello: {
      const std::lock_guard lock(mutex_);
      hello_ = Decode<Hello>(frame.body);
      break;
    }
    case MessageKind::kMemory: {
      const std::lock_guard lock(mutex_);
      memory_ = Decode<MemoryNow>(frame.body);
      return;
    }
    case MessageKind::kDone:
      Finish(Decode<Done>(frame.body));
      break;
    case MessageKind::kLost: {
      const std::lock_guard lock(mutex_);
      last_words_ = Sentence(Decode<Lost>(frame.body).reason);
      return;
    }
    default:
      return;
  }
  changed_.notify_all();
}

void WorkerConnection::Finish(Done done) {
  FreeJob undo;
  {
    const std::lock_guard lock(mutex_);
    const auto at = pending_.find(done.id);
    if (at == pending_.end()) return;
    if (!at->second.is_abandoned) {
      at->second.done = std::move(done);
      return;
    }
    if (done.error == 0) undo.slabs = std::move(at->second.slabs);
    pending_.erase(at);
  }
  if (undo.slabs.empty()) return;
  try {
    channel_.Send(static_cast<std::uint32_t>(MessageKind::kFree), Encode(undo));
  } catch (const Error&) {
    // It is gone, and the slabs with it.
  }
}

// Fails all that waits. What has been answered by then keeps its answer.
void WorkerConnection::End(const std::string& end) {
  bool is_retired;
  std::string reason;
  {
    const std::lock_guard lock(mutex_);
    is_retired = is_retired_;
    reason = last_words_.empty() ? "the GPU's worker " + end : last_words_;
  }
  // First, so that those who wait find the device without this worker when they go on.
  if (!is_retired) ended_(reason);
  std::map<std::uint64_t, Device::ReadReply> reads;
  {
    const std::lock_guard lock(mutex_);
    end_ = reason;
    for (auto& [id, pending] : pending_) {
      if (pending.done) continue;
      pending.done.emplace();
      pending.done->error = EIO;
      pending.done->reason = reason;
    }
    reads.swap(reads_);
  }
  changed_.notify_all();
  for (const auto& [id, reply] : reads) reply(EIO, Pieces());
}

}  // namespace safetensorfs

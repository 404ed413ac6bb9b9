#include "gpu/device/worker_connection.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"

namespace safetensorfs {
namespace {

// The largest answers are IPC handles of some hundred thousand slabs, and 1 MiB read back.
constexpr std::uint64_t kMaxBody = 32 << 20;
constexpr std::chrono::seconds kSendLimit(20);

// An errno of the worker's, whatever it says.
int ErrnoOf(std::int32_t code) { return code > 0 && code < 4096 ? code : EIO; }

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
      free_limit_(options.free_limit),
      ended_(std::move(ended)),
      process_(options.words, options.identity),
      channel_(process_.TakeSocket(), {kMaxBody, kSendLimit}),
      receiver_([this] { ReceiveAll(); }) {
  try {
    sender_ = std::thread([this] { SendAll(); });
  } catch (...) {
    Retire();
    receiver_.join();
    throw;
  }
}

WorkerConnection::~WorkerConnection() {
  Retire();
  receiver_.join();
  sender_.join();
}

void WorkerConnection::Retire() {
  {
    const std::lock_guard lock(mutex_);
    is_retired_ = true;
  }
  channel_.ShutDown();
  changed_.notify_all();
}

// The worker is of no use any more.
void WorkerConnection::Break(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (complaint_.empty()) complaint_ = "the GPU's worker " + reason;
  }
  process_.Kill();
  // One that hangs in the driver may not even die; its socket need not be waited for.
  channel_.ShutDown();
}

void WorkerConnection::Post(Outgoing frame) {
  {
    const std::lock_guard lock(mutex_);
    if (end_) return;  // it would not be answered
    outgoing_.push_back(std::move(frame));
  }
  changed_.notify_all();
}

void WorkerConnection::SendAll() {
  while (true) {
    Outgoing frame;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !outgoing_.empty() || is_retired_ || end_; });
      if (outgoing_.empty() || is_retired_ || end_) return;
      frame = std::move(outgoing_.front());
      outgoing_.pop_front();
    }
    try {
      channel_.Send(static_cast<std::uint32_t>(frame.kind), frame.body, {}, frame.fds);
    } catch (const Error& error) {
      // Otherwise it is gone, and how it ended says more.
      if (error.code() == ETIMEDOUT) {
        Break("took nothing for " + std::to_string(kSendLimit.count()) + " s");
      }
      return;
    }
  }
}

Hello WorkerConnection::AwaitHello(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, stop, start_limit_, [this] { return hello_ || end_; })) {
    if (stop.stop_requested()) throw Error(EINTR, "cancelled");
    throw Error(EIO, "the GPU's worker did not get ready in " +
                         std::to_string(start_limit_.count() / 1000) + " s");
  }
  if (!hello_) throw Error(EIO, *end_);
  if (hello_->error != 0) throw Error(ErrnoOf(hello_->error), Sentence(hello_->reason));
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
    Post({MessageKind::kSources, Encode(message), std::move(fds)});
  }
}

template <typename Job>
Done WorkerConnection::Run(MessageKind kind, Job job, Progress* progress, std::stop_token stop) {
  {
    const std::lock_guard lock(mutex_);
    job.id = next_id_++;
  }
  std::string body = Encode(job);
  {
    const std::lock_guard lock(mutex_);
    if (end_) throw Error(EIO, *end_);
    Pending& pending = pending_[job.id];
    pending.progress = progress;
    pending.slabs = SlabsOf(job);
  }
  Post({kind, std::move(body), {}});
  Done done = kind == MessageKind::kFree ? AwaitFreed(job.id) : Await(job.id, stop);
  if (done.error != 0) throw Error(ErrnoOf(done.error), Sentence(done.reason));
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
    Post({MessageKind::kCancel, Encode(id), {}});
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

// Whoever unloads has no way to cancel it: a worker that does not answer is given up.
Done WorkerConnection::AwaitFreed(std::uint64_t id) {
  std::unique_lock lock(mutex_);
  Pending& pending = pending_[id];
  const auto is_done = [&pending] { return pending.done.has_value(); };
  if (!changed_.wait_for(lock, free_limit_, is_done)) {
    lock.unlock();
    Break("freed nothing for " + std::to_string(free_limit_.count() / 1000) + " s");
    lock.lock();
    changed_.wait(lock, is_done);
  }
  Done done = std::move(*pending.done);
  pending_.erase(id);
  return done;
}

void WorkerConnection::Read(ReadBack request, Device::ReadReply reply) {
  std::string body;
  {
    const std::lock_guard lock(mutex_);
    request.id = next_id_++;
    body = Encode(request);
    if (!end_)
      reads_.emplace(request.id, PendingRead{std::exchange(reply, nullptr), request.nbytes});
  }
  if (reply) return reply(EIO, Pieces());
  Post({MessageKind::kRead, std::move(body), {}});
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
    Break(std::string("speaks nonsense: ") + error.what());
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
      PendingRead read;
      {
        const std::lock_guard lock(mutex_);
        const auto at = reads_.find(message.id);
        if (at == reads_.end()) return;
        read = std::move(at->second);
        reads_.erase(at);
      }
      if (message.error != 0) return read.reply(ErrnoOf(message.error), Pieces());
      Pieces pieces;
      pieces.text() = tail.substr(0, read.nbytes);
      read.reply(0, pieces);
      return;
    }
    case MessageKind::kProgress: {
      const auto message = Decode<JobProgress>(frame.body);
      const std::lock_guard lock(mutex_);
      const auto at = pending_.find(message.id);
      if (at != pending_.end() && at->second.progress != nullptr) {
        Progress& progress = *at->second.progress;
        progress.done = std::min(message.nbytes_done, progress.total.load());
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
  if (!undo.slabs.empty()) Post({MessageKind::kFree, Encode(undo), {}});
}

// Fails all that waits. What has been answered by then keeps its answer.
void WorkerConnection::End(const std::string& end) {
  bool is_retired;
  std::string reason;
  {
    const std::lock_guard lock(mutex_);
    is_retired = is_retired_;
    // What it said, why we killed it, how it ended, whichever is known first.
    reason = !last_words_.empty()  ? last_words_
             : !complaint_.empty() ? complaint_
                                   : "the GPU's worker " + end;
  }
  // First, so that those who wait find the device without this worker when they go on.
  if (!is_retired) ended_(reason);
  std::map<std::uint64_t, PendingRead> reads;
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
  for (const auto& [id, read] : reads) read.reply(EIO, Pieces());
}

}  // namespace safetensorfs

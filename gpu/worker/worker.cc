#include "gpu/worker/worker.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "core/base/error.h"
#include "gpu/process/channel.h"
#include "gpu/process/gpu_process.h"
#include "gpu/worker/gpu_session.h"
#include "gpu/worker/service_thread.h"

namespace safetensorfs {
namespace {

// Pinned memory is given back when no job comes for so long.
constexpr std::chrono::seconds kStagingPatience(2);
constexpr std::chrono::milliseconds kProgressInterval(50);
constexpr std::chrono::milliseconds kIdleInterval(1000);

// Field 22 of /proc/PID/stat; the program's name before it may hold anything.
std::uint64_t StartTicks() {
  std::ifstream file("/proc/self/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  std::size_t at = text.rfind(')');
  for (int field = 2; field < 22 && at != text.npos; ++field) at = text.find(' ', at + 1);
  return at != text.npos ? std::strtoull(text.c_str() + at, nullptr, 10) : 0;
}

Hello MakeHello() {
  Hello hello;
  hello.pid = getpid();
  hello.pid_start_ticks = StartTicks();
  struct stat status = {};
  stat("/proc/self/ns/pid", &status);
  hello.pid_namespace = status.st_ino;
  hello.euid = geteuid();
  return hello;
}

class Worker {
 public:
  explicit Worker(const WorkerOptions& options)
      : options_(options), channel_(UniqueFd(GpuProcess::kSocket), {}) {}

  // Receives in this thread, works in others. Never returns: what those threads are in may hang,
  // and the kernel gives back all that they hold.
  [[noreturn]] void Run() {
    std::thread([this] { RunJobs(); }).detach();
    while (true) {
      pollfd ready = {channel_.fd(), POLLIN, 0};
      const auto interval = HasJobs() ? kProgressInterval : kIdleInterval;
      const int n = poll(&ready, 1, static_cast<int>(interval.count()));
      if (const auto call = watch_.FindHanging(options_.call_limit)) {
        Die("the NVIDIA driver hangs: " + std::string(*call) + " has not returned in " +
            std::to_string(options_.call_limit.count() / 1000) + " s");
      }
      if (n <= 0) {
        ReportProgress();
        continue;
      }
      auto frame = Receive();
      if (!frame) _exit(0);
      Take(*frame);
    }
  }

 private:
  struct Job {
    std::uint64_t id;
    std::function<Done(GpuSession&, Job&)> run;
    std::atomic<std::uint64_t> nbytes_done = 0;
    std::stop_source stop;
  };

  template <typename Message>
  void Say(MessageKind kind, const Message& message, std::string_view tail = {}) {
    try {
      channel_.Send(static_cast<std::uint32_t>(kind), Encode(message), tail);
    } catch (const Error&) {
      _exit(0);  // nobody is left to tell
    }
  }

  std::optional<Frame> Receive() {
    try {
      return channel_.Receive();
    } catch (const Error& error) {
      Die(std::string("the GPU's worker cannot be told what to do: ") + error.what());
    }
  }

  [[noreturn]] void Die(const std::string& reason) {
    Say(MessageKind::kLost, Lost{reason});
    _exit(1);
  }

  bool HasJobs() {
    const std::lock_guard lock(mutex_);
    return running_ != nullptr || !jobs_.empty();
  }

  void ReportProgress() {
    std::shared_ptr<Job> job;
    {
      const std::lock_guard lock(mutex_);
      job = running_;
    }
    if (job) Say(MessageKind::kProgress, JobProgress{job->id, job->nbytes_done});
  }

  void Take(Frame& frame) {
    switch (static_cast<MessageKind>(frame.kind)) {
      case MessageKind::kSources: {
        const auto sources = Decode<Sources>(frame.body);
        for (std::size_t i = 0; i < sources.paths.size() && i < frame.fds.size(); ++i) {
          sources_.push_back({std::move(frame.fds[i]), sources.paths[i]});
        }
        return;
      }
      case MessageKind::kLoad:
        return SubmitReading(std::make_shared<const LoadJob>(Decode<LoadJob>(frame.body)));
      case MessageKind::kVerify:
        return SubmitReading(std::make_shared<const VerifyJob>(Decode<VerifyJob>(frame.body)));
      case MessageKind::kFree:
        return Serve(Decode<FreeJob>(frame.body));
      case MessageKind::kCancel:
        return Cancel(Decode<std::uint64_t>(frame.body));
      case MessageKind::kRead:
        return Serve(Decode<ReadBack>(frame.body));
      default:
        return;
    }
  }

  template <typename Request>
  void Serve(const Request& request) {
    const std::lock_guard lock(mutex_);
    if (service_) service_->Submit(request);
  }

  static Done RunJob(GpuSession& session, const LoadJob& request, std::vector<SourceReader> sources,
                     Job& job) {
    return session.Load(request, std::move(sources), job.nbytes_done, job.stop.get_token());
  }
  static Done RunJob(GpuSession& session, const VerifyJob& request,
                     std::vector<SourceReader> sources, Job& job) {
    return session.Verify(request, std::move(sources), job.nbytes_done, job.stop.get_token());
  }
  static bool MayBypass(const LoadJob& request) { return !request.is_one_of_several; }
  static bool MayBypass(const VerifyJob&) { return true; }

  template <typename Request>
  void SubmitReading(std::shared_ptr<const Request> request) {
    auto files = std::make_shared<std::vector<File>>(std::move(sources_));
    sources_.clear();
    Submit(request->id, [request, files](GpuSession& session, Job& job) {
      std::vector<SourceReader> sources;
      sources.reserve(files->size());
      for (File& file : *files) {
        sources.emplace_back(std::move(file.fd), std::move(file.path), MayBypass(*request));
      }
      return RunJob(session, *request, std::move(sources), job);
    });
  }

  void Submit(std::uint64_t id, std::function<Done(GpuSession&, Job&)> run) {
    auto job = std::make_shared<Job>();
    job->id = id;
    job->run = std::move(run);
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    submitted_.notify_one();
  }

  void Cancel(std::uint64_t id) {
    {
      const std::lock_guard lock(mutex_);
      if (running_ && running_->id == id) running_->stop.request_stop();
      // One that waits is gone at once, with the descriptors that it would have read.
      if (std::erase_if(jobs_, [id](const auto& job) { return job->id == id; }) == 0) return;
    }
    Done done;
    done.id = id;
    done.error = EINTR;
    done.reason = "cancelled before it began";
    Say(MessageKind::kDone, done);
  }

  void RunJobs() {
    std::optional<GpuSession> session;
    Hello hello = MakeHello();
    try {
      session.emplace(options_, watch_);
      Say(MessageKind::kMemory, session->Memory());
      const std::lock_guard lock(mutex_);
      service_.emplace(
          *session,
          ServiceThread::Replies{[this](const Bytes& reply, std::string_view bytes) {
                                   Say(MessageKind::kBytes, reply, bytes);
                                 },
                                 [this](const Done& done) { Say(MessageKind::kDone, done); },
                                 [this](const MemoryNow& now) { Say(MessageKind::kMemory, now); },
                                 [this](const std::string& reason) { Die(reason); }});
    } catch (const std::exception& error) {
      const auto* const ours = dynamic_cast<const Error*>(&error);
      hello.error = ours != nullptr ? ours->code() : EIO;
      hello.reason = error.what();
      Say(MessageKind::kHello, hello);
      return;
    }
    Say(MessageKind::kHello, hello);
    while (true) RunNextJob(*session);
  }

  void RunNextJob(GpuSession& session) {
    std::shared_ptr<Job> job;
    {
      std::unique_lock lock(mutex_);
      const auto is_submitted = [this] { return !jobs_.empty(); };
      if (!submitted_.wait_for(lock, kStagingPatience, is_submitted)) {
        lock.unlock();
        session.ReleaseStaging();
        lock.lock();
        submitted_.wait(lock, is_submitted);
      }
      job = running_ = std::move(jobs_.front());
      jobs_.pop_front();
    }
    const Done done = job->run(session, *job);
    {
      const std::lock_guard lock(mutex_);
      running_.reset();
    }
    // Without a word about the job: who waits for it is to find the device without this worker.
    if (!session.death().empty()) Die(session.death());
    try {
      Say(MessageKind::kMemory, session.Memory());
    } catch (const Error& error) {
      Die(error.what());
    }
    Say(MessageKind::kDone, done);
  }

  struct File {
    UniqueFd fd;
    std::string path;
  };

  const WorkerOptions options_;
  Channel channel_;
  CallWatch watch_;
  std::vector<File> sources_;  // of the next job; the receiving thread only

  std::mutex mutex_;  // guards what follows; never held while the driver is called
  std::condition_variable submitted_;
  std::deque<std::shared_ptr<Job>> jobs_;
  std::shared_ptr<Job> running_;
  std::optional<ServiceThread> service_;
};

}  // namespace

int RunWorker(const WorkerOptions& options) { Worker(options).Run(); }

}  // namespace safetensorfs

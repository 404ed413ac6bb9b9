#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "core/device/device.h"

namespace safetensorfs {

/// What came of a job: a positive errno or 0, and a line for the report.
struct Outcome {
  int error = 0;
  std::string line;
};

/// The outcome that the exception being handled amounts to.
Outcome OutcomeOfException();

/// One job of a device. Its owner keeps it to cancel it or to see how far it is.
struct Job {
  std::string verb;
  std::uint32_t place = 0;  // number of the checkpoint
  pid_t pid = 0;            // who asked, 0 if unknown
  std::uint64_t id = 0;     // counts the jobs of a queue
  bool is_brief = false;    // others may wait for it where they must not wait long
  Progress progress;
  std::stop_source stop;
  /// Does the work, in the queue's thread. Throws Error.
  std::function<std::string(Job&)> run;
  /// Called once, from the queue's thread or from the thread that cancels.
  std::function<void(Outcome)> done;
};

/// Runs the jobs of one device in order, in a thread of its own. Thread-safe.
class DeviceQueue {
 public:
  DeviceQueue();
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;
  ~DeviceQueue() { Stop(); }

  /// Cancels everything and waits until it has ended.
  void Stop();

  void Submit(std::shared_ptr<Job> job);
  /// Submits where only brief jobs run and wait; false otherwise.
  bool SubmitUnlessBusy(std::shared_ptr<Job> job);
  /// A job that waits is done at once with EINTR; one that runs is told to stop.
  void Cancel(const std::shared_ptr<Job>& job);
  /// The job that runs and those that wait, in order.
  std::vector<std::shared_ptr<Job>> Jobs() const;

 private:
  void Run();
  void Push(std::shared_ptr<Job> job);

  mutable std::mutex mutex_;  // guards what follows, never held while a job runs or is told its end
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> waiting_;
  std::shared_ptr<Job> running_;
  std::uint64_t next_id_ = 1;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace safetensorfs

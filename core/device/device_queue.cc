#include "core/device/device_queue.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <new>
#include <system_error>

#include "core/base/error.h"

namespace safetensorfs {
Outcome OutcomeOfException() {
  try {
    throw;
  } catch (const Error& error) {
    return {error.code(), error.what()};
  } catch (const std::system_error& error) {
    return {EIO,
            std::string("the system refuses what this needs, a thread perhaps: ") + error.what()};
  } catch (const std::bad_alloc&) {
    return {ENOMEM, "the daemon is out of memory"};
  } catch (const std::exception& error) {
    return {EIO, error.what()};
  }
}

namespace {

Outcome RunJob(Job& job) {
  try {
    return {0, job.run(job)};
  } catch (...) {
    return OutcomeOfException();
  }
}

}  // namespace

DeviceQueue::DeviceQueue() : thread_([this] { Run(); }) {}

void DeviceQueue::Stop() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    if (running_) running_->stop.request_stop();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void DeviceQueue::Push(std::shared_ptr<Job> job) {
  job->id = next_id_++;
  waiting_.push_back(std::move(job));
  changed_.notify_all();
}

void DeviceQueue::Submit(std::shared_ptr<Job> job) {
  const std::lock_guard lock(mutex_);
  Push(std::move(job));
}

bool DeviceQueue::SubmitUnlessBusy(std::shared_ptr<Job> job) {
  const std::lock_guard lock(mutex_);
  const auto is_long = [](const std::shared_ptr<Job>& other) { return !other->is_brief; };
  if ((running_ && is_long(running_)) || std::ranges::any_of(waiting_, is_long)) return false;
  Push(std::move(job));
  return true;
}

void DeviceQueue::Cancel(const std::shared_ptr<Job>& job) {
  {
    const std::lock_guard lock(mutex_);
    job->stop.request_stop();
    if (std::erase(waiting_, job) == 0) return;
  }
  job->done({EINTR, "cancelled before it began"});
}

std::vector<std::shared_ptr<Job>> DeviceQueue::Jobs() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Job>> jobs(waiting_.begin(), waiting_.end());
  if (running_) jobs.insert(jobs.begin(), running_);
  return jobs;
}

void DeviceQueue::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    running_ = std::move(waiting_.front());
    waiting_.pop_front();
    if (ends_) running_->stop.request_stop();
    const std::shared_ptr<Job> job = running_;
    lock.unlock();
    Outcome outcome = RunJob(*job);
    lock.lock();
    // Before it is said to be done: who hears of that finds the queue idle.
    running_.reset();
    lock.unlock();
    job->done(std::move(outcome));
    lock.lock();
  }
}

}  // namespace safetensorfs

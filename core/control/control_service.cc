#include "core/control/control_service.h"

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/control/control_command.h"
#include "core/control/tensor_selection.h"

namespace safetensorfs {
namespace {

// The kernel interrupts a request once only, so a writer that was interrupted by a harmless signal
// is looked at again and again.
constexpr std::chrono::milliseconds kPollInterval(50);

// "load cpu,cuda:0", as written.
std::string SubjectOf(const Command& command) {
  std::string subject(VerbName(command.verb));
  for (const std::string& device : command.devices) {
    subject += (&device == &command.devices.front() ? " " : ",") + Printable(device);
  }
  return subject;
}

}  // namespace

// The lines of one request on their way.
struct ControlService::Execution {
  struct DeviceJob {
    DeviceHost* host;
    std::shared_ptr<Job> job;
    Outcome outcome;
  };

  std::uint64_t id = 0;
  std::shared_ptr<ControlSession> session;
  std::shared_ptr<ControlRequest> request;
  std::vector<std::string> lines;
  std::size_t next_line = 0;
  // The command that runs.
  Command command;
  enum class Search { kNotYet, kRuns, kDone } search = Search::kNotYet;  // for its devices
  std::vector<DeviceJob> jobs;
  std::size_t jobs_left = 0;
  bool is_interrupted = false;
  bool is_cancelled = false;
};

std::string ControlSession::report(std::uint64_t offset, std::size_t size) const {
  const std::lock_guard lock(mutex_);
  return offset < report_.size() ? report_.substr(offset, size) : std::string();
}

void ControlSession::AddLine(const std::string& line) {
  const std::lock_guard lock(mutex_);
  report_ += line + '\n';
  if (report_.size() <= kMaxReport) return;
  // What came last, a failure above all, is worth more.
  constexpr std::string_view kCut = "(earlier lines are left out)\n";
  report_.replace(0, report_.find('\n', report_.size() - kMaxReport / 2) + 1, kCut);
}

ControlService::ControlService(const SourceTree& source, Devices& devices) : devices_(devices) {
  for (const auto& open : source.checkpoints) {
    selectors_.push_back(std::make_unique<TensorSelector>(open.checkpoint->index));
  }
  thread_ = std::thread([this] { Loop(); });
}

void ControlService::Stop() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  posted_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<ControlSession> ControlService::Open(std::uint32_t place, uid_t uid) {
  return std::make_shared<ControlSession>(place, uid);
}

std::string ControlService::LatestReport(std::uint32_t place, uid_t uid) const {
  std::shared_ptr<ControlSession> session;
  {
    const std::lock_guard lock(mutex_);
    const auto at = latest_.find({place, uid});
    if (at == latest_.end()) return {};
    session = at->second;
  }
  return session->report();
}

void ControlService::Post(Task task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  // Under the lock: once this task is seen to be done, the service may go.
  posted_.notify_all();
}

void ControlService::Loop() {
  bool is_ending = false;
  while (true) {
    std::deque<Task> tasks;
    {
      std::unique_lock lock(mutex_);
      const auto is_due = [&] { return !tasks_.empty() || (ends_ && !is_ending); };
      if (polls_) {
        posted_.wait_for(lock, kPollInterval, is_due);
      } else {
        posted_.wait(lock, [&] { return is_due() || (is_ending && executions_.empty()); });
      }
      tasks.swap(tasks_);
      if (ends_ && !is_ending) {
        is_ending = true;
        tasks.push_back([this] {
          for (const auto& [id, execution] : executions_) CancelJobs(*execution);
        });
      }
    }
    for (const Task& task : tasks) task();
    PollInterrupted();
    if (is_ending && executions_.empty()) {
      const std::lock_guard lock(mutex_);
      if (tasks_.empty()) return;
    }
  }
}

void ControlService::Write(std::shared_ptr<ControlSession> session, std::string text,
                           std::unique_ptr<ControlRequest> request) {
  {
    const std::lock_guard lock(mutex_);
    latest_[{session->place_, session->uid_}] = session;
  }
  Post([this, session = std::move(session), text = std::move(text),
        request = std::shared_ptr(std::move(request))] { Start(session, request, &text); });
}

void ControlService::Close(std::shared_ptr<ControlSession> session,
                           std::unique_ptr<ControlRequest> request) {
  Post([this, session = std::move(session), request = std::shared_ptr(std::move(request))] {
    Start(session, request, nullptr);
  });
}

void ControlService::Note(std::uint32_t place, uid_t uid, const std::string& line) {
  auto session = Open(place, uid);
  session->AddLine(line);
  const std::lock_guard lock(mutex_);
  latest_[{place, uid}] = std::move(session);
}

void ControlService::Start(std::shared_ptr<ControlSession> session,
                           std::shared_ptr<ControlRequest> request, const std::string* text) {
  auto execution = std::make_shared<Execution>();
  execution->id = next_execution_++;
  execution->session = std::move(session);
  execution->request = std::move(request);
  executions_.emplace(execution->id, execution);
  ControlSession& self = *execution->session;
  try {
    if (text != nullptr) {
      execution->lines = self.script_.Write(*text);
    } else if (auto line = self.script_.Close(); line && !execution->request->IsKilled()) {
      execution->lines.push_back(std::move(*line));
    } else {
      // A close that runs nothing succeeds, whatever happened before it.
      executions_.erase(execution->id);
      return execution->request->Reply(0);
    }
  } catch (...) {
    return Fail(execution);
  }
  // What follows a failure on one descriptor fails with it: a script goes no further than its first
  // failure, though the shell that writes it line by line does.
  if (self.failure_ != 0) return Finish(execution, self.failure_);
  execution->request->Watch([this, id = execution->id] {
    Post([this, id] {
      const auto at = executions_.find(id);
      if (at != executions_.end()) at->second->is_interrupted = true;
    });
  });
  RunNextLine(execution);
}

void ControlService::RunNextLine(const std::shared_ptr<Execution>& execution) {
  while (execution->next_line < execution->lines.size()) {
    if (execution->is_cancelled) return Finish(execution, EINTR);
    const std::string& line = execution->lines[execution->next_line++];
    try {
      if (!RunLine(execution, line)) return;
    } catch (...) {
      return Fail(execution);
    }
  }
  Finish(execution, 0);
}

bool ControlService::RunLine(const std::shared_ptr<Execution>& execution, const std::string& line) {
  const std::optional<Command> command = ParseCommand(line);
  if (!command) return true;
  if (command->verb == Verb::kHelp) {
    std::string text(HelpText());
    if (text.ends_with('\n')) text.pop_back();
    execution->session->AddLine(text);
    return true;
  }
  execution->command = *command;
  execution->search = Execution::Search::kNotYet;
  Submit(execution);
  return false;
}

std::optional<std::vector<DeviceHost*>> ControlService::FindDevices(Execution& execution) {
  std::vector<DeviceHost*> hosts;
  for (const std::string& word : execution.command.devices) {
    DeviceHost* host = devices_.Find(word);
    if (host == nullptr && execution.search == Execution::Search::kNotYet) return std::nullopt;
    if (host == nullptr) throw Error(ENODEV, devices_.Missing(word));
    if (std::ranges::count(hosts, host) > 0) {
      throw Error(EINVAL, Quoted(word) + " is " + host->name() + ", which is named already");
    }
    hosts.push_back(host);
  }
  return hosts;
}

void ControlService::LookForDevices(Execution& execution) {
  execution.search = Execution::Search::kRuns;
  devices_.LookForMore(Devices::Search::kAgain,
                       [this, id = execution.id] { Post([this, id] { Resume(id); }); });
}

void ControlService::Resume(std::uint64_t id) {
  const auto at = executions_.find(id);
  if (at == executions_.end() || at->second->search != Execution::Search::kRuns) return;
  const std::shared_ptr<Execution> execution = at->second;
  execution->search = Execution::Search::kDone;
  try {
    Submit(execution);
  } catch (...) {
    Fail(execution);
  }
}

void ControlService::Submit(const std::shared_ptr<Execution>& execution) {
  const Command& command = execution->command;
  std::vector<DeviceHost*> hosts;
  try {
    if (execution->is_cancelled) throw Error(EINTR, "cancelled before it began");
    auto found = FindDevices(*execution);
    if (!found) return LookForDevices(*execution);
    hosts = std::move(*found);
  } catch (const Error& error) {
    throw Error(error.code(), SubjectOf(command) + ": " + error.what());
  }

  const DeviceCommand job{command.verb,
                          execution->session->place_,
                          execution->request->pid(),
                          std::make_shared<const std::vector<Glob>>(command.patterns),
                          selectors_[execution->session->place_].get(),
                          LoadHints{.is_one_of_several = hosts.size() > 1}};
  execution->jobs.clear();
  for (DeviceHost* host : hosts) execution->jobs.push_back({host, nullptr, {}});
  execution->jobs_left = hosts.size();
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    execution->jobs[i].job = hosts[i]->Submit(job, [this, execution, i](Outcome outcome) {
      Post([this, execution, i, outcome = std::move(outcome)]() mutable {
        FinishJob(execution, i, std::move(outcome));
      });
    });
  }
}

void ControlService::FinishJob(const std::shared_ptr<Execution>& execution, std::size_t number,
                               Outcome outcome) {
  execution->jobs[number].outcome = std::move(outcome);
  if (--execution->jobs_left > 0) return;
  int failure = 0;
  for (const Execution::DeviceJob& job : execution->jobs) {
    execution->session->AddLine(std::string(VerbName(execution->command.verb)) + " " +
                                job.host->name() + ": " + job.outcome.line);
    if (failure == 0) failure = job.outcome.error;
  }
  execution->jobs.clear();
  if (failure != 0) return Finish(execution, failure);
  RunNextLine(execution);
}

// Ends an execution with the exception that is being handled.
void ControlService::Fail(const std::shared_ptr<Execution>& execution) {
  const Outcome outcome = OutcomeOfException();
  execution->session->AddLine(outcome.line);
  Finish(execution, outcome.error);
}

void ControlService::Finish(const std::shared_ptr<Execution>& execution, int error) {
  // EINTR again would make callers that retry on EINTR (Python, Go) try for ever.
  if (execution->session->failure_ == 0) {
    execution->session->failure_ = error == EINTR ? ECANCELED : error;
  }
  executions_.erase(execution->id);
  execution->request->Reply(error);
}

void ControlService::CancelJobs(Execution& execution) {
  execution.is_cancelled = true;
  for (const Execution::DeviceJob& job : execution.jobs) job.host->Cancel(job.job);
  // Not here: who calls this goes through the executions, of which this one is to leave.
  Post([this, id = execution.id] { Resume(id); });
}

void ControlService::PollInterrupted() {
  bool polls = false;
  for (const auto& [id, execution] : executions_) {
    if (!execution->is_interrupted || execution->is_cancelled) continue;
    if (execution->request->WantsToEnd()) {
      CancelJobs(*execution);
    } else {
      polls = true;
    }
  }
  const std::lock_guard lock(mutex_);
  polls_ = polls;
}

}  // namespace safetensorfs

#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/control/control_script.h"
#include "core/control/devices.h"
#include "core/tree/source_tree.h"

namespace safetensorfs {

/// One write(2) or close(2) that waits for its commands. Called by the service's thread only.
class ControlRequest {
 public:
  virtual ~ControlRequest() = default;
  /// The request is being served: from now on `interrupted` may be called, once and from any
  /// thread.
  virtual void Watch(std::function<void()> interrupted) = 0;
  /// After an interruption, again and again: whether it means that the caller wants to end.
  virtual bool WantsToEnd() = 0;
  /// Whether the caller is being killed: what it left unfinished is not meant to run.
  virtual bool IsKilled() = 0;
  /// Called once, as the last thing: 0 or a positive errno.
  virtual void Reply(int error) = 0;
  /// The process that asks, 0 if unknown.
  virtual pid_t pid() const = 0;
};

/// What a descriptor of a control file has been through: its text so far, its first failure and its
/// report.
class ControlSession {
 public:
  ControlSession(std::uint32_t place, uid_t uid) : place_(place), uid_(uid) {}

  /// Bytes that a report may have: the older half of a longer one goes.
  static constexpr std::size_t kMaxReport = 1 << 20;

  /// A part of the report so far: a line per command. Thread-safe.
  std::string report(std::uint64_t offset = 0, std::size_t size = std::string::npos) const;

 private:
  friend class ControlService;

  void AddLine(const std::string& line);

  const std::uint32_t place_;  // number of the checkpoint
  const uid_t uid_;
  ScriptBuffer script_;  // these two: the service's thread only
  int failure_ = 0;
  mutable std::mutex mutex_;  // guards report_
  std::string report_;
};

/// Runs the commands of all control files. One thread reads lines and answers; choosing tensors and
/// all that follows is done in the devices' queues, so that no caller waits for another's device.
/// Thread-safe.
class ControlService {
 public:
  /// Both must outlive it.
  ControlService(const SourceTree& source, Devices& devices);
  ControlService(const ControlService&) = delete;
  ControlService& operator=(const ControlService&) = delete;
  ~ControlService() { Stop(); }

  /// Cancels what runs and answers every request; takes no more. Before the devices stop.
  void Stop();

  std::shared_ptr<ControlSession> Open(std::uint32_t place, uid_t uid);
  /// Takes a write's text and runs the lines that it completes.
  void Write(std::shared_ptr<ControlSession> session, std::string text,
             std::unique_ptr<ControlRequest> request);
  /// Runs the line that waits for its end, if one does.
  void Close(std::shared_ptr<ControlSession> session, std::unique_ptr<ControlRequest> request);

  /// Makes one line the user's latest report: what came of a command that no descriptor gave.
  void Note(std::uint32_t place, uid_t uid, const std::string& line);
  /// The report of the user's latest descriptor that wrote something; empty if there is none.
  std::string LatestReport(std::uint32_t place, uid_t uid) const;

 private:
  struct Execution;
  using Task = std::function<void()>;

  void Post(Task task);
  void Loop();
  // `text`: a write's; null where the descriptor is closed.
  void Start(std::shared_ptr<ControlSession> session, std::shared_ptr<ControlRequest> request,
             const std::string* text);
  void RunNextLine(const std::shared_ptr<Execution>& execution);
  // True if the line is done; false if it waits for devices.
  bool RunLine(const std::shared_ptr<Execution>& execution, const std::string& line);
  // Runs the execution's command on its devices, once those are found. Throws Error.
  void Submit(const std::shared_ptr<Execution>& execution);
  // The devices that the command names; nothing where one has to be looked for first.
  std::optional<std::vector<DeviceHost*>> FindDevices(Execution& execution);
  void LookForDevices(Execution& execution);
  // Goes on with an execution that looks for devices, if it still does.
  void Resume(std::uint64_t id);
  void FinishJob(const std::shared_ptr<Execution>& execution, std::size_t number, Outcome outcome);
  void Fail(const std::shared_ptr<Execution>& execution);
  void Finish(const std::shared_ptr<Execution>& execution, int error);
  void CancelJobs(Execution& execution);
  void PollInterrupted();

  Devices& devices_;
  std::vector<std::unique_ptr<TensorSelector>> selectors_;  // by checkpoint

  // The service's thread only.
  std::map<std::uint64_t, std::shared_ptr<Execution>> executions_;
  std::uint64_t next_execution_ = 1;

  mutable std::mutex mutex_;  // guards what follows; never held while a request is called
  std::condition_variable posted_;
  std::deque<Task> tasks_;
  bool polls_ = false;  // an interrupted request waits
  bool ends_ = false;
  std::map<std::pair<std::uint32_t, uid_t>, std::shared_ptr<ControlSession>> latest_;
  std::thread thread_;
};

}  // namespace safetensorfs

#include "core/control/device_host.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <set>

#include "core/base/error.h"
#include "core/base/process.h"
#include "core/base/text.h"
#include "core/control/device_texts.h"

namespace safetensorfs {
namespace {

// RELEASE comes after close(2) has returned: `python client.py; rm ...` must find the lease gone.
constexpr std::chrono::milliseconds kLeasePatience(90);

std::vector<std::uint32_t> TensorCounts(const SourceTree& source) {
  std::vector<std::uint32_t> counts;
  for (const auto& open : source.checkpoints) counts.push_back(open.checkpoint->index.size());
  return counts;
}

std::uint64_t BytesOf(const Checkpoint& checkpoint, const std::vector<std::uint32_t>& tensors) {
  std::uint64_t nbytes = 0;
  for (const std::uint32_t tensor : tensors) nbytes += checkpoint.index[tensor].nbytes;
  return nbytes;
}

std::string Count(std::size_t tensors) {
  return Grouped(tensors) + (tensors == 1 ? " tensor" : " tensors");
}

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

std::string Speed(std::uint64_t nbytes, double seconds) {
  char text[80];
  std::snprintf(text, sizeof text, " in %.3f s, %.2f GB/s", seconds,
                seconds > 0 ? static_cast<double>(nbytes) / seconds / 1e9 : 0.0);
  return text;
}

// A lease unit of a device, told from those of other checkpoints.
std::uint64_t Unit(std::uint32_t place, std::uint64_t number) {
  return place * kLeaseUnits + number;
}

// What comes after `folder` in a path; nothing where it is not there.
std::optional<std::string_view> NameBelow(const std::string& folder, std::string_view path) {
  const std::size_t at = path.rfind(folder);
  if (at == path.npos) return std::nullopt;
  return path.substr(at + folder.size());
}

void CheckUnchanged(const Checkpoint& checkpoint, const std::vector<std::uint32_t>& tensors) {
  std::vector<bool> is_checked(checkpoint.sources.size());
  for (const std::uint32_t tensor : tensors) {
    const std::uint32_t number = checkpoint.index[tensor].source;
    if (!is_checked[number]) checkpoint.sources[number].CheckUnchanged();
    is_checked[number] = true;
  }
}

}  // namespace

DeviceHost::DeviceHost(std::unique_ptr<Device> device, const SourceTree& source,
                       std::function<void(const std::string&)> log)
    : source_(source),
      log_(std::move(log)),
      loaded_(TensorCounts(source),
              [this](std::uint32_t place, std::uint32_t tensor) {
                return CheckpointAt(place).index[tensor].nbytes;
              }),
      device_(std::move(device)) {
  device_->OnLost([this](const std::string& reason) { Lose(reason); });
}

void DeviceHost::Lose(const std::string& reason) {
  std::string line = name() + ": ";
  {
    // Who sees that something was lost finds the reason too.
    const std::lock_guard lock(loss_mutex_);
    const LoadedTensors::Amount lost = loaded_.Clear();
    ForgetSlabText();
    loss_reason_ = reason;
    last_failure_ = lost.tensors == 0 ? "failed while nothing was loaded: " + reason
                                      : "lost " + Count(lost.tensors) + ", " +
                                            Grouped(lost.nbytes) + " bytes: " + reason;
    line += last_failure_;
  }
  if (log_) log_(line);
}

// It may be large, and of what is gone.
void DeviceHost::ForgetSlabText() {
  const std::lock_guard lock(slab_mutex_);
  rendered_slab_ = {};
}

std::optional<std::string> DeviceHost::LastFailure() const {
  const std::lock_guard lock(loss_mutex_);
  return last_failure_.empty() ? std::nullopt : std::optional(last_failure_);
}

std::shared_ptr<Job> DeviceHost::Submit(DeviceCommand command, std::function<void(Outcome)> done) {
  auto job = std::make_shared<Job>();
  job->verb = VerbName(command.verb);
  job->place = command.place;
  job->pid = command.pid;
  job->done = std::move(done);
  job->run = [this, command = std::move(command)](Job& self) { return Run(self, command); };
  queue_.Submit(job);
  return job;
}

std::string DeviceHost::Run(Job& job, const DeviceCommand& command) {
  const std::uint64_t losses = loaded_.losses();
  std::string line;
  try {
    switch (command.verb) {
      case Verb::kLoad:
        line = RunLoad(job, command, losses);
        break;
      case Verb::kUnload:
        line = RunUnload(job, command);
        break;
      case Verb::kVerify:
        line = RunVerify(job, command);
        break;
      case Verb::kHelp:
        break;
    }
  } catch (const Error& error) {
    if (error.code() == EINTR || loaded_.losses() == losses) throw;
  }
  if (loaded_.losses() == losses) return line;
  const std::lock_guard lock(loss_mutex_);
  throw Error(EIO, "the device failed and lost what was loaded: " + loss_reason_);
}

std::vector<std::uint32_t> DeviceHost::Select(Job& job, const DeviceCommand& command) const {
  SelectionScope scope;
  scope.cancelled = [&job] { return job.stop.stop_requested(); };
  if (command.verb != Verb::kLoad) {
    scope.contains = [&](std::uint32_t tensor) { return loaded_.Has(command.place, tensor); };
    scope.which = "loaded on " + name();
  }
  return command.selector->Select(*command.patterns, scope);
}

std::string DeviceHost::RunLoad(Job& job, const DeviceCommand& command, std::uint64_t losses) {
  const Checkpoint& checkpoint = CheckpointAt(command.place);
  const std::vector<std::uint32_t> meant = Select(job, command);
  const std::vector<std::uint32_t> missing = loaded_.Missing(command.place, meant);
  const Stopwatch watch;
  CheckUnchanged(checkpoint, missing);
  const std::uint64_t nbytes = BytesOf(checkpoint, missing);
  job.progress.total = nbytes;
  device_->Load(checkpoint, missing, command.hints, job.progress, job.stop.get_token());
  try {
    // A source that was rewritten meanwhile: part old, part new.
    CheckUnchanged(checkpoint, missing);
  } catch (...) {
    device_->Unload(checkpoint, missing);
    throw;
  }
  if (!loaded_.Add(command.place, missing, losses)) device_->Unload(checkpoint, missing);
  return Count(missing.size()) + ", " + Grouped(nbytes) + " bytes loaded" +
         Speed(nbytes, watch.seconds()) +
         (meant.size() > missing.size()
              ? "; " + Count(meant.size() - missing.size()) + " already there"
              : "");
}

std::string DeviceHost::RunUnload(Job& job, const DeviceCommand& command) {
  return Unload(command.place, Select(job, command));
}

std::string DeviceHost::Unload(std::uint32_t place, const std::vector<std::uint32_t>& tensors) {
  const Checkpoint& checkpoint = CheckpointAt(place);
  const auto holders = loaded_.Remove(
      place, tensors, [&](std::uint32_t tensor) { return UnitOf(place, tensor); }, kLeasePatience);
  if (!holders.empty()) throw Error(EBUSY, "in use by " + NamesOf(place, tensors, holders));
  const std::uint64_t nbytes = BytesOf(checkpoint, tensors);
  const std::uint64_t freed = device_->Unload(checkpoint, tensors);
  ForgetSlabText();
  std::string line = Count(tensors.size()) + ", " + Grouped(nbytes) + " bytes unloaded, " +
                     Grouped(freed) + " freed";
  if (freed < nbytes) line += ", " + Grouped(nbytes - freed) + " still held by neighbours";
  return line;
}

std::string DeviceHost::RunVerify(Job& job, const DeviceCommand& command) {
  const Checkpoint& checkpoint = CheckpointAt(command.place);
  const std::vector<std::uint32_t> tensors = Select(job, command);
  // All of nothing is equal, but not what somebody who asks after hours wants to hear.
  if (tensors.empty()) throw Error(ENOENT, "nothing is loaded");
  const Stopwatch watch;
  CheckUnchanged(checkpoint, tensors);
  const std::uint64_t nbytes = BytesOf(checkpoint, tensors);
  job.progress.total = nbytes;
  device_->Verify(checkpoint, tensors, job.progress, job.stop.get_token());
  return Count(tensors.size()) + ", " + Grouped(nbytes) + " bytes equal to the source" +
         Speed(nbytes, watch.seconds());
}

void DeviceHost::Unlink(const LoadedTensors::Instance& instance, pid_t pid,
                        std::function<void(Outcome)> done) {
  auto job = std::make_shared<Job>();
  job->verb = VerbName(Verb::kUnload);
  job->place = instance.place;
  job->pid = pid;
  job->is_brief = true;
  job->done = done;
  job->run = [this, instance](Job&) -> std::string {
    if (!loaded_.FindSerial(instance.serial)) throw Error(ENOENT, "is not loaded any more");
    return Unload(instance.place, {instance.tensor});
  };
  if (!queue_.SubmitUnlessBusy(job)) done({EBUSY, name() + ": busy with a command; see .status"});
}

std::uint64_t DeviceHost::UnitOf(std::uint32_t place, std::uint32_t tensor) const {
  return Unit(place, device_->LeaseUnit(CheckpointAt(place), tensor));
}

std::vector<Holder> DeviceHost::FindHolders(std::uint32_t place,
                                            const std::vector<std::uint32_t>& tensors) const {
  std::set<std::uint64_t> units;
  for (const std::uint32_t tensor : tensors) units.insert(UnitOf(place, tensor));
  const TensorIndex& index = CheckpointAt(place).index;
  const auto is_meant = [&](const std::string& path) {
    if (const auto file = NameBelow("/.devices/" + name() + "/handles/", path)) {
      const auto tensor = index.FindFile(*file);
      return tensor && units.contains(UnitOf(place, *tensor));
    }
    const auto file = NameBelow("/.devices/" + name() + "/slabs/", path);
    const auto number = file ? ParseSlabName(*file) : std::nullopt;
    return number && units.contains(Unit(place, *number));
  };
  std::vector<Holder> found;
  for (const pid_t pid : ProcessesWithOpenFile(mount_device_, is_meant)) {
    found.push_back({pid, ProgramOf(pid)});
  }
  return found;
}

// "pid 7 (python3), pid 9 (bash)". Who took a lease may have handed the descriptor on, to a child
// for one: those who have it now are named, where they can be seen.
std::string DeviceHost::NamesOf(std::uint32_t place, const std::vector<std::uint32_t>& tensors,
                                const std::vector<Holder>& openers) const {
  constexpr std::size_t kNamed = 8;
  std::vector<Holder> holders = FindHolders(place, tensors);
  if (holders.empty()) holders = openers;
  std::string text;
  for (std::size_t i = 0; i < std::min(holders.size(), kNamed); ++i) {
    text += (i > 0 ? ", pid " : "pid ") + std::to_string(holders[i].pid) + " (" +
            Printable(holders[i].program) + ")";
  }
  if (holders.size() > kNamed) text += " and " + Grouped(holders.size() - kNamed) + " more";
  return text;
}

std::optional<std::uint64_t> DeviceHost::Lease(const LoadedTensors::Instance& instance, pid_t pid) {
  return loaded_.Lease(instance.serial, UnitOf(instance.place, instance.tensor),
                       {pid, ProgramOf(pid)});
}

void DeviceHost::Read(const LoadedTensors::Instance& instance, std::uint64_t offset,
                      std::uint64_t size, Device::ReadReply reply) {
  const Checkpoint& checkpoint = CheckpointAt(instance.place);
  if (!loaded_.FindSerial(instance.serial)) return reply(ESTALE, Pieces());
  const std::uint64_t nbytes = checkpoint.index[instance.tensor].nbytes;
  if (offset >= nbytes) return reply(0, Pieces());
  device_->Read(checkpoint, instance.tensor, offset, std::min(size, nbytes - offset),
                std::move(reply));
}

std::string DeviceHost::HandleText(const LoadedTensors::Instance& instance) const {
  return safetensorfs::HandleText(*device_, CheckpointAt(instance.place), instance);
}

std::optional<LoadedTensors::Instance> DeviceHost::FindInSlab(std::uint32_t place,
                                                              std::uint64_t number) const {
  const Checkpoint& checkpoint = CheckpointAt(place);
  const auto slab = device_->FindSlab(checkpoint, number);
  if (!slab) return std::nullopt;
  for (const Slab::Tensor& entry : slab->tensors) {
    const auto instance = loaded_.Find(place, entry.tensor);
    // It may have been loaded again meanwhile, elsewhere.
    if (instance && device_->LeaseUnit(checkpoint, entry.tensor) == number) return instance;
  }
  return std::nullopt;
}

std::shared_ptr<const std::string> DeviceHost::SlabText(
    const LoadedTensors::Instance& instance) const {
  const std::uint64_t changes = loaded_.changes();
  {
    const std::lock_guard lock(slab_mutex_);
    if (rendered_slab_.serial == instance.serial && rendered_slab_.changes == changes) {
      return rendered_slab_.text;
    }
  }
  const Checkpoint& checkpoint = CheckpointAt(instance.place);
  const std::uint64_t number = device_->LeaseUnit(checkpoint, instance.tensor);
  auto slab = device_->FindSlab(checkpoint, number);
  if (!slab || !loaded_.FindSerial(instance.serial)) {
    throw Error(ESTALE, name() + ": load " + std::to_string(instance.serial) + " is gone");
  }
  std::erase_if(slab->tensors, [&](const Slab::Tensor& entry) {
    return !loaded_.Has(instance.place, entry.tensor);
  });
  auto text = std::make_shared<const std::string>(
      safetensorfs::SlabText(*device_, checkpoint, number, *slab));
  const std::lock_guard lock(slab_mutex_);
  rendered_slab_ = {instance.serial, changes, text};
  return text;
}

std::string DeviceHost::InfoText(std::optional<std::uint32_t> place) const {
  LoadedTensors::Amount loaded;
  for (std::uint32_t i = 0; i < source_.checkpoints.size(); ++i) {
    if (place.value_or(i) != i) continue;
    const LoadedTensors::Amount total = loaded_.Total(i);
    loaded.tensors += total.tensors;
    loaded.nbytes += total.nbytes;
  }
  return safetensorfs::InfoText(*device_, loaded, loaded_.LeaseCount(), LastFailure());
}

}  // namespace safetensorfs

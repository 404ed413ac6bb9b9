#include "core/control/device_host.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <set>

#include "core/base/error.h"
#include "core/base/process.h"
#include "core/base/text.h"

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

void CheckUnchanged(const Checkpoint& checkpoint, const std::vector<std::uint32_t>& tensors) {
  std::vector<bool> is_checked(checkpoint.sources.size());
  for (const std::uint32_t tensor : tensors) {
    const std::uint32_t number = checkpoint.index[tensor].source;
    if (!is_checked[number]) checkpoint.sources[number].CheckUnchanged();
    is_checked[number] = true;
  }
}

}  // namespace

DeviceHost::DeviceHost(std::unique_ptr<Device> device, const SourceTree& source)
    : source_(source),
      loaded_(TensorCounts(source)),
      loaded_nbytes_(source.checkpoints.size()),
      device_(std::move(device)) {
  device_->OnLost([this](const std::string&) {
    loaded_.Clear();
    for (auto& nbytes : loaded_nbytes_) nbytes = 0;
  });
}

std::shared_ptr<Job> DeviceHost::Submit(DeviceCommand command, std::function<void(Outcome)> done) {
  auto job = std::make_shared<Job>();
  job->verb = VerbName(command.verb);
  job->place = command.place;
  job->pid = command.pid;
  job->done = std::move(done);
  job->run = [this, command = std::move(command)](Job& self) {
    switch (command.verb) {
      case Verb::kLoad:
        return RunLoad(self, command);
      case Verb::kUnload:
        return RunUnload(self, command);
      case Verb::kVerify:
        return RunVerify(self, command);
      case Verb::kHelp:
        break;
    }
    return std::string();
  };
  queue_.Submit(job);
  return job;
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

std::string DeviceHost::RunLoad(Job& job, const DeviceCommand& command) {
  const Checkpoint& checkpoint = CheckpointAt(command.place);
  std::vector<std::uint32_t> missing = Select(job, command);
  const std::size_t meant = missing.size();
  std::erase_if(missing, [&](std::uint32_t tensor) { return loaded_.Has(command.place, tensor); });
  const Stopwatch watch;
  CheckUnchanged(checkpoint, missing);
  const std::uint64_t nbytes = BytesOf(checkpoint, missing);
  const std::uint64_t losses = loaded_.losses();
  job.progress.total = nbytes;
  device_->Load(checkpoint, missing, command.hints, job.progress, job.stop.get_token());
  try {
    // A source that was rewritten meanwhile: part old, part new.
    CheckUnchanged(checkpoint, missing);
  } catch (...) {
    device_->Unload(checkpoint, missing);
    throw;
  }
  if (!loaded_.Add(command.place, missing, losses)) {
    throw Error(EIO, "the device failed and lost what was loaded");
  }
  loaded_nbytes_[command.place] += nbytes;
  return Count(missing.size()) + ", " + Grouped(nbytes) + " bytes loaded" +
         Speed(nbytes, watch.seconds()) +
         (meant > missing.size() ? "; " + Count(meant - missing.size()) + " already there" : "");
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
  loaded_nbytes_[place] -= nbytes;
  const std::uint64_t freed = device_->Unload(checkpoint, tensors);
  std::string line = Count(tensors.size()) + ", " + Grouped(nbytes) + " bytes unloaded, " +
                     Grouped(freed) + " freed";
  if (freed < nbytes) line += ", " + Grouped(nbytes - freed) + " still held by neighbours";
  return line;
}

std::string DeviceHost::RunVerify(Job& job, const DeviceCommand& command) {
  const Checkpoint& checkpoint = CheckpointAt(command.place);
  const std::vector<std::uint32_t> tensors = Select(job, command);
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
  return static_cast<std::uint64_t>(place) << 40 | device_->LeaseUnit(CheckpointAt(place), tensor);
}

std::vector<Holder> DeviceHost::FindHolders(std::uint32_t place,
                                            const std::vector<std::uint32_t>& tensors) const {
  std::set<std::uint64_t> units;
  for (const std::uint32_t tensor : tensors) units.insert(UnitOf(place, tensor));
  const TensorIndex& index = CheckpointAt(place).index;
  const std::string folder = "/.devices/" + name() + "/handles/";
  const auto is_meant = [&](const std::string& path) {
    const std::size_t at = path.rfind(folder);
    if (at == path.npos) return false;
    const auto tensor = index.FindFile(std::string_view(path).substr(at + folder.size()));
    return tensor && units.contains(UnitOf(place, *tensor));
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
  const Checkpoint& checkpoint = CheckpointAt(instance.place);
  const TensorIndex& index = checkpoint.index;
  std::string text = "{\"version\":1,\"device\":\"" + name() + "\",\"name\":";
  AppendJsonString(index.name(instance.tensor), text);
  text += ",\"dtype\":\"" + std::string(index.dtype(instance.tensor).name) + "\",\"shape\":";
  AppendShape(index.shape(instance.tensor), text);
  text += ",\"nbytes\":" + std::to_string(index[instance.tensor].nbytes) +
          ",\"generation\":" + std::to_string(instance.serial) + "," +
          device_->HandleFields(checkpoint, instance.tensor) + "}\n";
  return text;
}

std::string DeviceHost::InfoText(std::optional<std::uint32_t> place) const {
  const DeviceInfo info = device_->Info();
  std::uint64_t tensors = 0;
  std::uint64_t nbytes = 0;
  for (std::uint32_t i = 0; i < loaded_nbytes_.size(); ++i) {
    if (place.value_or(i) != i) continue;
    tensors += loaded_.Count(i);
    nbytes += loaded_nbytes_[i];
  }
  std::string text = "{\"name\":\"" + name() + "\"";
  if (!info.uuid.empty()) text += ",\"uuid\":\"" + info.uuid + "\"";
  const auto add = [&text](const char* field, std::uint64_t value) {
    text += std::string(",\"") + field + "\":" + std::to_string(value);
  };
  add("total_nbytes", info.total_nbytes);
  if (info.free_nbytes) {
    add("free_nbytes", *info.free_nbytes);
  } else {
    text += ",\"free_nbytes\":null";
  }
  add("loaded_tensors", tensors);
  add("loaded_nbytes", nbytes);
  add("held_nbytes", info.held_nbytes);
  add("leases", loaded_.LeaseCount());
  return text + "}";
}

}  // namespace safetensorfs

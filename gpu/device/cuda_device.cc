#include "gpu/device/cuda_device.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"

namespace safetensorfs {
namespace {

constexpr std::chrono::milliseconds kHouseInterval(500);
// Lease units of tensors without bytes, which lie in no slab.
constexpr std::uint64_t kEmptyUnits = kLeaseUnits / 2;

// The sources of transfers, each once, in the order of their first use, by which the transfers name
// them from now on.
std::vector<const SourceFile*> NumberSources(const Checkpoint& checkpoint,
                                             std::vector<Transfer>& transfers) {
  std::vector<const SourceFile*> sources;
  std::map<std::uint32_t, std::uint32_t> numbers;
  for (Transfer& transfer : transfers) {
    const auto [at, is_new] =
        numbers.emplace(transfer.source, static_cast<std::uint32_t>(sources.size()));
    if (is_new) sources.push_back(&checkpoint.sources[transfer.source]);
    transfer.source = at->second;
  }
  return sources;
}

std::string HexOf(const IpcHandle& handle) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : handle) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace

// Sets a flag while a job runs, and begins the worker's idle time after it.
class CudaDevice::Busy {
 public:
  explicit Busy(CudaDevice& device) : device_(device) { Set(true); }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;
  ~Busy() { Set(false); }

 private:
  void Set(bool is_busy) {
    const std::lock_guard lock(device_.mutex_);
    device_.is_busy_ = is_busy;
    device_.idle_since_ = std::chrono::steady_clock::now();
  }

  CudaDevice& device_;
};

CudaDevice::CudaDevice(int ordinal, DeviceFacts facts, CudaDeviceOptions options)
    : name_("cuda:" + std::to_string(ordinal)),
      ordinal_(ordinal),
      facts_(std::move(facts)),
      options_(std::move(options)) {}

CudaDevice::~CudaDevice() {
  if (housekeeper_.joinable()) {
    housekeeper_.request_stop();
    housekeeper_.join();
  }
  std::vector<std::shared_ptr<WorkerConnection>> last;
  {
    const std::lock_guard lock(mutex_);
    last = std::exchange(old_, {});
    if (worker_) last.push_back(std::exchange(worker_, nullptr));
  }
  // Their threads may still be calling us, until they are destroyed here.
  for (const auto& connection : last) connection->Retire();
}

std::shared_ptr<WorkerConnection> CudaDevice::worker() const {
  const std::lock_guard lock(mutex_);
  return worker_;
}

// The worker, ready to work.
std::shared_ptr<WorkerConnection> CudaDevice::StartWorker(std::stop_token stop) {
  if (auto running = worker()) return running;
  if (!housekeeper_.joinable()) {
    housekeeper_ = std::jthread([this](std::stop_token ending) { KeepHouse(ending); });
  }
  const std::vector<std::string> words = {"worker", std::to_string(ordinal_), facts_.uuid,
                                          facts_.pci_bus,
                                          std::to_string(options_.call_limit.count())};
  std::uint64_t number;
  {
    std::unique_lock lock(mutex_);
    // What is loaded now must not be counted among what was lost.
    changed_.wait(lock, [this] { return !is_announcing_; });
    number = ++workers_;
  }
  const auto started = std::make_shared<WorkerConnection>(
      WorkerConnection::Options{words, options_.identity, options_.cancel_limit,
                                options_.start_limit, options_.free_limit},
      [this, number](const std::string& reason) { WorkerEnded(number, reason); });
  {
    const std::lock_guard lock(mutex_);
    worker_ = started;
  }
  changed_.notify_all();
  try {
    const Hello hello = started->AwaitHello(stop);
    const std::lock_guard lock(mutex_);
    hello_ = hello;
    return started;
  } catch (const Error&) {
    started->Retire();
    const std::lock_guard lock(mutex_);
    if (worker_ == started) old_.push_back(std::exchange(worker_, nullptr));
    throw;
  }
}

// In a thread of the connection, which cannot destroy it.
void CudaDevice::WorkerEnded(std::uint64_t number, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (number != workers_) return;
    is_announcing_ = true;
    if (worker_) old_.push_back(std::exchange(worker_, nullptr));
    hello_.reset();
    slabs_.clear();
    locations_.clear();
  }
  if (lost_) lost_(reason);
  {
    const std::lock_guard lock(mutex_);
    is_announcing_ = false;
  }
  changed_.notify_all();
}

void CudaDevice::KeepHouse(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    changed_.wait(lock, stop, [this] { return worker_ || !old_.empty(); });
    changed_.wait_for(lock, stop, kHouseInterval, [this] { return !old_.empty(); });
    const auto idle = std::chrono::steady_clock::now() - idle_since_;
    if (worker_ && !is_busy_ && slabs_.empty() && idle >= options_.idle_limit) {
      worker_->Retire();
      old_.push_back(std::exchange(worker_, nullptr));
      hello_.reset();
    }
    auto old = std::exchange(old_, {});
    lock.unlock();
    old.clear();
    lock.lock();
  }
}

void CudaDevice::Load(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors,
                      const LoadHints& hints, Progress& progress, std::stop_token stop) {
  SlabPlan plan = PlanSlabs(checkpoint.index, tensors, next_slab_);
  if (plan.slabs.empty()) return;
  next_slab_ += plan.slabs.size();
  const Busy busy(*this);
  const auto worker = StartWorker(stop);
  LoadJob job;
  job.is_one_of_several = hints.is_one_of_several;
  job.slabs = plan.slabs;
  job.transfers = plan.transfers;
  worker->SendSources(NumberSources(checkpoint, job.transfers));
  const Done done = worker->Run(MessageKind::kLoad, std::move(job), &progress, stop);
  progress.done = progress.total.load();
  if (!done.handles.empty() && done.handles.size() != plan.slabs.size()) {
    throw Error(EIO, "the GPU's worker speaks nonsense");
  }
  const std::lock_guard lock(mutex_);
  if (worker_ != worker) throw Error(EIO, "the GPU's worker ended");
  Record(checkpoint, plan, done);
}

void CudaDevice::Record(const Checkpoint& checkpoint, const SlabPlan& plan, const Done& done) {
  for (std::size_t i = 0; i < plan.slabs.size(); ++i) {
    const SlabSize& slab = plan.slabs[i];
    slabs_[slab.number] = {&checkpoint, slab.nbytes, ExportFields(slab, done, i), {}, 0};
  }
  std::vector<Location>& locations = locations_[&checkpoint];
  locations.resize(checkpoint.index.size());
  auto slab = slabs_.end();
  for (const Transfer& transfer : plan.transfers) {
    locations[transfer.tensor] = {transfer.slab, transfer.slab_offset};
    if (slab == slabs_.end() || slab->first != transfer.slab) slab = slabs_.find(transfer.slab);
    slab->second.tensors.push_back(transfer.tensor);
    ++slab->second.left;
  }
}

std::uint64_t CudaDevice::Unload(const Checkpoint& checkpoint,
                                 std::span<const std::uint32_t> tensors) {
  const Busy busy(*this);
  FreeJob job;
  std::uint64_t freed = 0;
  std::shared_ptr<WorkerConnection> worker;
  {
    const std::lock_guard lock(mutex_);
    worker = worker_;
    const auto locations = locations_.find(&checkpoint);
    if (locations == locations_.end()) return 0;
    for (const std::uint32_t tensor : tensors) {
      const Location at = std::exchange(locations->second[tensor], {});
      if (at.slab == 0) continue;
      const auto slab = slabs_.find(at.slab);
      if (--slab->second.left > 0) continue;
      job.slabs.push_back(at.slab);
      freed += slab->second.nbytes;
      slabs_.erase(slab);
    }
  }
  if (worker && !job.slabs.empty()) worker->Run(MessageKind::kFree, std::move(job), nullptr, {});
  return freed;
}

void CudaDevice::Verify(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors,
                        Progress& progress, std::stop_token stop) {
  const Busy busy(*this);
  VerifyJob job;
  const auto running = worker();
  for (const std::uint32_t tensor : tensors) {
    const Location at = LocationOf(checkpoint, tensor);
    const TensorIndex::Entry& entry = checkpoint.index[tensor];
    if (at.slab == 0) continue;
    job.transfers.push_back({at.slab, at.offset, entry.offset, entry.nbytes, entry.source, tensor});
  }
  if (job.transfers.empty()) return;
  if (!running) throw Error(EIO, "the GPU's worker ended");
  SortBySlab(job.transfers);
  running->SendSources(NumberSources(checkpoint, job.transfers));
  const Done done = running->Run(MessageKind::kVerify, std::move(job), &progress, stop);
  if (!done.is_difference) {
    progress.done = progress.total.load();
    return;
  }
  if (done.tensor >= checkpoint.index.size()) {
    throw Error(EIO, "the GPU's worker speaks nonsense");
  }
  throw Error(EIO, "tensor " + Quoted(checkpoint.index.name(done.tensor)) +
                       ": device memory differs from " +
                       Printable(checkpoint.source_of(done.tensor).path()) + " from byte " +
                       std::to_string(done.byte) + " of the tensor on");
}

void CudaDevice::Read(const Checkpoint& checkpoint, std::uint32_t tensor, std::uint64_t offset,
                      std::uint64_t size, ReadReply reply) {
  const Location at = LocationOf(checkpoint, tensor);
  const auto running = worker();
  if (at.slab == 0 || !running) return reply(ESTALE, Pieces());
  running->Read({0, at.slab, at.offset + offset, size}, std::move(reply));
}

CudaDevice::Location CudaDevice::LocationOf(const Checkpoint& checkpoint,
                                            std::uint32_t tensor) const {
  const std::lock_guard lock(mutex_);
  const auto locations = locations_.find(&checkpoint);
  return locations != locations_.end() ? locations->second[tensor] : Location();
}

std::uint64_t CudaDevice::LeaseUnit(const Checkpoint& checkpoint, std::uint32_t tensor) const {
  const std::uint64_t slab = LocationOf(checkpoint, tensor).slab;
  return slab != 0 ? slab : kEmptyUnits + tensor;
}

std::string CudaDevice::ExportFields(const SlabSize& slab, const Done& done,
                                     std::size_t number) const {
  std::string fields = "\"device_uuid\":";
  AppendJsonString(facts_.uuid, fields);
  if (done.handles.empty() || !facts_.no_export.empty()) {
    fields += ",\"export\":\"none\",\"reason\":";
    AppendJsonString(Printable(facts_.no_export.empty() ? done.no_export : facts_.no_export, 1000),
                     fields);
  } else {
    fields += ",\"export\":\"cuda_ipc\",\"ipc_handle\":\"" + HexOf(done.handles[number]) + "\"";
  }
  const auto add = [&fields](const char* field, std::uint64_t value) {
    fields += std::string(",\"") + field + "\":" + std::to_string(value);
  };
  add("slab", slab.number);
  add("slab_nbytes", slab.nbytes);
  add("pid", static_cast<std::uint64_t>(hello_->pid));
  add("pid_start_ticks", hello_->pid_start_ticks);
  add("pid_namespace", hello_->pid_namespace);
  add("euid", hello_->euid);
  return fields;
}

std::string CudaDevice::HandleFields(const Checkpoint& checkpoint, std::uint32_t tensor) const {
  const Location at = LocationOf(checkpoint, tensor);
  const std::lock_guard lock(mutex_);
  const auto slab = slabs_.find(at.slab);
  if (slab == slabs_.end()) {
    std::string fields = "\"device_uuid\":";
    AppendJsonString(facts_.uuid, fields);
    return fields + ",\"export\":\"none\",\"reason\":\"the tensor has no bytes\"";
  }
  return slab->second.fields + ",\"offset\":" + std::to_string(at.offset);
}

std::vector<std::uint64_t> CudaDevice::SlabNumbers(const Checkpoint& checkpoint) const {
  std::vector<std::uint64_t> numbers;
  const std::lock_guard lock(mutex_);
  for (const auto& [number, slab] : slabs_) {
    if (slab.checkpoint == &checkpoint) numbers.push_back(number);
  }
  return numbers;
}

std::optional<Slab> CudaDevice::FindSlab(const Checkpoint& checkpoint, std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto at = slabs_.find(number);
  if (at == slabs_.end() || at->second.checkpoint != &checkpoint) return std::nullopt;
  const std::vector<Location>& locations = locations_.at(&checkpoint);
  Slab slab;
  slab.fields = at->second.fields;
  for (const std::uint32_t tensor : at->second.tensors) {
    const Location& location = locations[tensor];
    if (location.slab == number) slab.tensors.push_back({tensor, location.offset});
  }
  return slab;
}

DeviceInfo CudaDevice::Info() const {
  DeviceInfo info;
  info.uuid = facts_.uuid;
  info.product = facts_.product;
  info.total_nbytes = facts_.total_nbytes;
  const std::lock_guard lock(mutex_);
  if (worker_) {
    if (const auto memory = worker_->memory()) info.free_nbytes = memory->free_nbytes;
  }
  for (const auto& [number, slab] : slabs_) info.held_nbytes += slab.nbytes;
  return info;
}

}  // namespace safetensorfs

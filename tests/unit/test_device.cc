#include "tests/unit/test_device.h"

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

namespace safetensorfs {

void TestDevice::Shut() {
  const std::lock_guard lock(mutex_);
  is_shut_ = true;
}

void TestDevice::Open() {
  const std::lock_guard lock(mutex_);
  is_shut_ = false;
  changed_.notify_all();
}

void TestDevice::AwaitJob() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return is_inside_; });
}

void TestDevice::FailNext(int code, std::string message) {
  const std::lock_guard lock(mutex_);
  failure_ = Error(code, message);
}

void TestDevice::OnLost(Lost lost) {
  const std::lock_guard lock(mutex_);
  lost_ = std::move(lost);
}

void TestDevice::Die(const std::string& reason) {
  Lost lost;
  {
    const std::lock_guard lock(mutex_);
    lost = lost_;
    held_.clear();
    unheld_.clear();
  }
  lost(reason);
}

std::size_t TestDevice::held() const {
  const std::lock_guard lock(mutex_);
  return held_.size();
}

std::size_t TestDevice::loads() const {
  const std::lock_guard lock(mutex_);
  return loads_;
}

void TestDevice::Pass(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  is_inside_ = true;
  changed_.notify_all();
  changed_.wait(lock, stop, [this] { return !is_shut_; });
  is_inside_ = false;
  if (stop.stop_requested()) throw Error(EINTR, "cancelled");
  if (failure_) {
    const Error failure = *failure_;
    failure_.reset();
    throw failure;
  }
}

bool TestDevice::was_one_of_several() const {
  const std::lock_guard lock(mutex_);
  return was_one_of_several_;
}

void TestDevice::Load(const Checkpoint&, std::span<const std::uint32_t> tensors,
                      const LoadHints& hints, Progress& progress, std::stop_token stop) {
  {
    const std::lock_guard lock(mutex_);
    ++loads_;
    was_one_of_several_ = hints.is_one_of_several;
    std::map<std::uint32_t, std::uint64_t> slabs;  // by pair of tensors
    for (const std::uint32_t tensor : tensors) {
      const auto [slab, is_new] = slabs.try_emplace(tensor / 2, next_slab_);
      if (is_new) ++next_slab_;
      held_[tensor] = slab->second;
    }
  }
  try {
    Pass(stop);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    for (const std::uint32_t tensor : tensors) held_.erase(tensor);
    throw;
  }
  progress.done = progress.total.load();
}

std::uint64_t TestDevice::Unload(const Checkpoint& checkpoint,
                                 std::span<const std::uint32_t> tensors) {
  const std::lock_guard lock(mutex_);
  std::uint64_t freed = 0;
  for (const std::uint32_t tensor : tensors) {
    const auto at = held_.find(tensor);
    if (at == held_.end()) continue;
    const std::uint64_t slab = at->second;
    held_.erase(at);
    unheld_[slab] += checkpoint.index[tensor].nbytes;
    if (HoldsSlab(slab)) continue;
    freed += unheld_[slab];
    unheld_.erase(slab);
  }
  return freed;
}

bool TestDevice::HoldsSlab(std::uint64_t number) const {
  return std::ranges::any_of(held_, [=](const auto& held) { return held.second == number; });
}

std::uint64_t TestDevice::LeaseUnit(const Checkpoint&, std::uint32_t tensor) const {
  const std::lock_guard lock(mutex_);
  const auto at = held_.find(tensor);
  return at == held_.end() ? 0 : at->second;
}

std::vector<std::uint64_t> TestDevice::SlabNumbers(const Checkpoint&) const {
  const std::lock_guard lock(mutex_);
  std::set<std::uint64_t> numbers;
  for (const auto& [tensor, slab] : held_) numbers.insert(slab);
  return {numbers.begin(), numbers.end()};
}

void TestDevice::AfterNextSlab(std::function<void()> action) {
  const std::lock_guard lock(mutex_);
  after_slab_ = std::move(action);
}

std::optional<Slab> TestDevice::FindSlab(const Checkpoint&, std::uint64_t number) const {
  std::unique_lock lock(mutex_);
  auto slab = MakeSlab(number);
  const auto after = std::exchange(after_slab_, {});
  lock.unlock();
  if (after) after();
  return slab;
}

std::optional<Slab> TestDevice::MakeSlab(std::uint64_t number) const {
  if (!HoldsSlab(number)) return std::nullopt;
  Slab slab;
  for (const auto& [tensor, held_in] : held_) {
    if (held_in == number) slab.tensors.push_back({tensor, tensor % 2 * 256});
  }
  slab.fields = "\"export\":\"test\"";
  return slab;
}

void TestDevice::Verify(const Checkpoint&, std::span<const std::uint32_t>, Progress&,
                        std::stop_token stop) {
  Pass(stop);
}

void TestDevice::Read(const Checkpoint&, std::uint32_t, std::uint64_t, std::uint64_t size,
                      ReadReply reply) {
  Pieces pieces;
  pieces.text().assign(size, 't');
  reply(0, pieces);
}

}  // namespace safetensorfs

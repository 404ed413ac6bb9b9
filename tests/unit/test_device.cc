#include "tests/unit/test_device.h"

#include <cerrno>

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

void TestDevice::Die() {
  {
    const std::lock_guard lock(mutex_);
    held_.clear();
  }
  lost_("the test device died");
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

void TestDevice::Load(const Checkpoint&, std::span<const std::uint32_t> tensors, const LoadHints&,
                      Progress& progress, std::stop_token stop) {
  {
    const std::lock_guard lock(mutex_);
    ++loads_;
    held_.insert(tensors.begin(), tensors.end());
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
    held_.erase(tensor);
    freed += checkpoint.index[tensor].nbytes;
  }
  return freed;
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

#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "core/base/error.h"
#include "core/device/device.h"

namespace safetensorfs {

/// A device that is slow, fails, hangs and dies on request. It holds nothing but numbers. What a
/// test tells it to do it does in its next job.
class TestDevice : public Device {
 public:
  explicit TestDevice(std::string name) : name_(std::move(name)) {}

  /// The next jobs wait inside until Open(), or until they are cancelled.
  void Shut();
  void Open();
  /// Returns once a job waits inside.
  void AwaitJob();
  /// The next job fails with this, after it has taken memory.
  void FailNext(int code, std::string message);
  /// All that is loaded is gone, as when a worker process dies.
  void Die();

  std::size_t held() const;   // tensors
  std::size_t loads() const;  // calls of Load

  const std::string& name() const override { return name_; }
  bool IsAlsoCalled(std::string_view word) const override { return word == "GPU-" + name_; }
  void Load(const Checkpoint&, std::span<const std::uint32_t> tensors, const LoadHints&,
            Progress& progress, std::stop_token stop) override;
  std::uint64_t Unload(const Checkpoint&, std::span<const std::uint32_t> tensors) override;
  void Verify(const Checkpoint&, std::span<const std::uint32_t>, Progress&,
              std::stop_token stop) override;
  void Read(const Checkpoint&, std::uint32_t, std::uint64_t, std::uint64_t,
            ReadReply reply) override;
  std::string HandleFields(const Checkpoint&, std::uint32_t) const override {
    return "\"export\":\"test\"";
  }
  /// Two tensors to a unit.
  std::uint64_t LeaseUnit(const Checkpoint&, std::uint32_t tensor) const override {
    return tensor / 2;
  }
  DeviceInfo Info() const override { return {}; }
  void OnLost(Lost lost) override { lost_ = std::move(lost); }

 private:
  void Pass(std::stop_token stop);

  std::string name_;
  mutable std::mutex mutex_;  // guards all
  std::condition_variable_any changed_;
  bool is_shut_ = false;
  bool is_inside_ = false;
  std::optional<Error> failure_;
  std::set<std::uint32_t> held_;
  std::size_t loads_ = 0;
  Lost lost_;
};

}  // namespace safetensorfs

#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "core/base/error.h"
#include "core/device/device.h"

namespace safetensorfs {

/// A device that is slow, fails, hangs and dies on request. It holds nothing but numbers. What a
/// test tells it to do it does in its next job. Tensors 0 and 1, 2 and 3, ... share a slab if they
/// are loaded together, 256 bytes apart. It knows one checkpoint.
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
  /// All that is loaded is gone, as when a worker process dies of `reason`.
  void Die(const std::string& reason = "the test device died");
  /// What happens right after the next slab was asked for.
  void AfterNextSlab(std::function<void()> action);

  std::size_t held() const;         // tensors
  std::size_t loads() const;        // calls of Load
  bool was_one_of_several() const;  // the last of them

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
  std::uint64_t LeaseUnit(const Checkpoint&, std::uint32_t tensor) const override;
  std::vector<std::uint64_t> SlabNumbers(const Checkpoint&) const override;
  std::optional<Slab> FindSlab(const Checkpoint&, std::uint64_t number) const override;
  DeviceInfo Info() const override { return {"", "Test \"1\"", 0, std::nullopt, 0}; }
  void OnLost(Lost lost) override;

 private:
  void Pass(std::stop_token stop);
  std::optional<Slab> MakeSlab(std::uint64_t number) const;
  bool HoldsSlab(std::uint64_t number) const;

  std::string name_;
  mutable std::mutex mutex_;  // guards all
  std::condition_variable_any changed_;
  bool is_shut_ = false;
  bool is_inside_ = false;
  std::optional<Error> failure_;
  mutable std::function<void()> after_slab_;
  std::map<std::uint32_t, std::uint64_t> held_;    // tensor -> slab
  std::map<std::uint64_t, std::uint64_t> unheld_;  // slab -> bytes unloaded from it
  std::uint64_t next_slab_ = 1;
  std::size_t loads_ = 0;
  bool was_one_of_several_ = false;
  Lost lost_;
};

}  // namespace safetensorfs

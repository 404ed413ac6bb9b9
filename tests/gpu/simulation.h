#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tests/unit/temporary_folder.h"

namespace safetensorfs {

/// A simulated driver (tests/simulated_cuda) of its own for one test, in force until it goes.
class Simulation {
 public:
  /// `config`: lines of key=value. Two devices where it says nothing else.
  explicit Simulation(std::string_view config = {});
  ~Simulation();

  /// Replaces the configuration, also for processes that run.
  void Configure(std::string_view config);

  /// A number that the driver counts, in all processes.
  std::uint64_t Count(std::string_view counter) const;
  /// Device memory in use by processes that live: their contexts and what they allocated.
  std::uint64_t UsedBytes(std::size_t device) const;
  std::uint64_t AllocatedBytes(std::size_t device) const;
  /// Pinned host memory of processes that live, now and at most.
  std::uint64_t PinnedBytes() const;
  std::uint64_t PinnedPeak() const;
  /// Processes that live and have called the driver.
  std::size_t Processes() const;

 private:
  TemporaryFolder folder_;
};

}  // namespace safetensorfs

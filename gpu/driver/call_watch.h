#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace safetensorfs {

/// Sees how long calls into the driver have been running, so that one that never returns is
/// noticed. Thread-safe; no locks, since what hangs may hang anywhere.
class CallWatch {
  struct Call;

 public:
  /// A call, from construction to destruction.
  class Scope {
   public:
    Scope(CallWatch& watch, const char* name);
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();

   private:
    Call* call_ = nullptr;
  };

  /// The name of a call that has been running for `limit` or longer.
  std::optional<const char*> FindHanging(std::chrono::milliseconds limit) const;

 private:
  // More threads than call at once; those beyond are not watched.
  static constexpr std::size_t kCalls = 64;
  struct Call {
    std::atomic<const char*> name = nullptr;
    std::atomic<std::int64_t> since = INT64_MAX;  // steady clock, ns
  };
  std::array<Call, kCalls> calls_;
};

}  // namespace safetensorfs

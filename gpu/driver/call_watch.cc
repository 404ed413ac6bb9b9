#include "gpu/driver/call_watch.h"

namespace safetensorfs {
namespace {

std::int64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

CallWatch::Scope::Scope(CallWatch& watch, const char* name) {
  const std::int64_t now = Now();
  for (Call& call : watch.calls_) {
    const char* free = nullptr;
    if (call.name.load(std::memory_order_relaxed) != nullptr) continue;
    // Since when is said next; until then, as Scope leaves it, it never began.
    if (!call.name.compare_exchange_strong(free, name)) continue;
    call.since = now;
    call_ = &call;
    return;
  }
}

CallWatch::Scope::~Scope() {
  if (call_ == nullptr) return;
  call_->since = INT64_MAX;
  call_->name = nullptr;
}

std::optional<const char*> CallWatch::FindHanging(std::chrono::milliseconds limit) const {
  const std::int64_t latest = Now() - std::chrono::nanoseconds(limit).count();
  for (const Call& call : calls_) {
    const std::int64_t since = call.since;
    const char* const name = call.name;
    // The same call still runs where `since` has not been set anew meanwhile.
    if (name != nullptr && since <= latest && call.since == since) return name;
  }
  return std::nullopt;
}

}  // namespace safetensorfs

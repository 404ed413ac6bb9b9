#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/tree/tree.h"

namespace safetensorfs {

/// Remembers which threads have looked up names in which directories, for a while: of two that fall
/// on one slot the later stays. READDIRPLUS answers with full entries only to those, so that a
/// plain `ls` of a million names makes the kernel keep nothing, and `ls -l` need not ask for each.
/// Thread-safe, lock-free.
class LookupMemory {
 public:
  void Remember(pid_t thread, NodeId directory) {
    const std::uint64_t key = Key(thread, directory);
    slots_[key % slots_.size()].store(key, std::memory_order_relaxed);
  }
  bool Remembers(pid_t thread, NodeId directory) const {
    const std::uint64_t key = Key(thread, directory);
    return slots_[key % slots_.size()].load(std::memory_order_relaxed) == key;
  }

 private:
  static std::uint64_t Key(pid_t thread, NodeId directory) {
    const std::uint64_t mixed =
        (directory ^ static_cast<std::uint64_t>(thread) * 0x9E3779B97F4A7C15u) *
        0xD6E8FEB86659FD93u;
    return (mixed ^ mixed >> 32) | 1;
  }

  std::array<std::atomic<std::uint64_t>, 1021> slots_ = {};
};

}  // namespace safetensorfs

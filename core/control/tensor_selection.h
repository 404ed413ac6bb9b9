#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/control/glob.h"
#include "core/format/tensor_index.h"

namespace safetensorfs {

/// Among which tensors a command selects.
struct SelectionScope {
  /// Empty: all. Asked for each tensor that a pattern means, for some more than once.
  std::function<bool(std::uint32_t)> contains = {};

  /// Completes "no tensor WHICH matches", e.g. "loaded on cpu".
  std::string which = {};

  /// Asked once in kNamesPerCheck names tried; true ends the selection.
  std::function<bool()> cancelled = {};
};

inline constexpr std::uint64_t kNamesPerCheck = 4096;

/// Finds the tensors that patterns mean:
///
///   1. text equal to a tensor's name, special characters included: that tensor
///   2. else text equal to a file name: that tensor
///   3. else every tensor whose name or file name the glob matches
///
/// Texts are looked up by hash. Once globs have made it read all names a few times, the selector
/// sorts the names, forwards or backwards, and from then on reads only those that begin or end
/// like the glob: 4 bytes a tensor for each of up to four orders, kept until it dies. So it pays to
/// keep one selector for all commands of a mount. Thread-safe; the index must outlive it.
class TensorSelector {
 public:
  explicit TensorSelector(const TensorIndex& index) : index_(index) {}

  /// Ascending numbers, each once; without patterns the whole scope. Throws Error: ENOENT if a
  /// pattern means no tensor in `scope` (the message names three such patterns at most, and their
  /// number), EINTR once cancelled.
  std::vector<std::uint32_t> Select(std::span<const Glob> patterns,
                                    const SelectionScope& scope = {}) const;

 private:
  class Search;

  struct Order {
    std::once_flag built;
    std::vector<std::uint32_t> tensors;
  };

  // Tensor names, or the file names of those tensors for which they differ.
  enum class Names { kTensors, kFiles };
  enum class Direction { kForwards, kBackwards };

  std::string_view NameOf(Names names, std::uint32_t tensor, std::string& buffer) const;
  std::size_t Count(Names names) const;
  const std::vector<std::uint32_t>& Renamed() const;
  const std::vector<std::uint32_t>& Sorted(Names names, Direction direction) const;
  std::span<const std::uint32_t> Range(Names names, Direction direction,
                                       std::string_view end) const;

  const TensorIndex& index_;
  mutable Order renamed_;       // ascending: the tensors that Names::kFiles means
  mutable Order orders_[2][2];  // by Names and Direction
  mutable std::atomic<unsigned> whole_readings_ = 0;
};

}  // namespace safetensorfs

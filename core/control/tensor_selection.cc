#include "core/control/tensor_selection.h"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <optional>
#include <unordered_set>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"

namespace safetensorfs {
namespace {

// Sorting a list of names costs about as much as matching it so many times.
constexpr unsigned kReadingsBeforeSorting = 16;

// So few candidates are not worth looking at the other end of the names.
constexpr std::size_t kFewCandidates = 16;

constexpr std::size_t kFoundBeforeSorting = 4096;

constexpr std::size_t kNamedInMessages = 3;

struct HashOfText {
  std::size_t operator()(const Glob* glob) const {
    return std::hash<std::string_view>()(glob->text());
  }
};

struct EqualGlobs {
  bool operator()(const Glob* a, const Glob* b) const { return *a == *b; }
};

bool ComesBefore(std::string_view a, std::string_view b, bool backwards) {
  if (!backwards) return a < b;
  return std::lexicographical_compare(a.rbegin(), a.rend(), b.rbegin(), b.rend());
}

}  // namespace

std::string_view TensorSelector::NameOf(Names names, std::uint32_t tensor,
                                        std::string& buffer) const {
  if (names == Names::kTensors) return index_.name(tensor);
  buffer = index_.FileName(tensor);
  return buffer;
}

const std::vector<std::uint32_t>& TensorSelector::Renamed() const {
  std::call_once(renamed_.built, [this] {
    std::vector<std::uint32_t> renamed;
    for (std::uint32_t i = 0; i < index_.size(); ++i) {
      if (index_.FileName(i) != index_.name(i)) renamed.push_back(i);
    }
    renamed_.tensors = std::move(renamed);
  });
  return renamed_.tensors;
}

std::size_t TensorSelector::Count(Names names) const {
  return names == Names::kTensors ? index_.size() : Renamed().size();
}

const std::vector<std::uint32_t>& TensorSelector::Sorted(Names names, Direction direction) const {
  Order& order = orders_[static_cast<int>(names)][static_cast<int>(direction)];
  std::call_once(order.built, [&] {
    // File names are made here once each and not for every comparison.
    std::vector<std::string> buffers(names == Names::kFiles ? Count(names) : 1);
    std::vector<std::pair<std::string_view, std::uint32_t>> keys(Count(names));
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::uint32_t tensor =
          names == Names::kFiles ? Renamed()[i] : static_cast<std::uint32_t>(i);
      keys[i] = {NameOf(names, tensor, buffers[names == Names::kFiles ? i : 0]), tensor};
    }
    const bool backwards = direction == Direction::kBackwards;
    std::sort(keys.begin(), keys.end(), [backwards](const auto& a, const auto& b) {
      return ComesBefore(a.first, b.first, backwards);
    });
    order.tensors.reserve(keys.size());
    for (const auto& [name, tensor] : keys) order.tensors.push_back(tensor);
  });
  return order.tensors;
}

// The tensors whose names begin (forwards) or end (backwards) with `end`.
std::span<const std::uint32_t> TensorSelector::Range(Names names, Direction direction,
                                                     std::string_view end) const {
  const bool backwards = direction == Direction::kBackwards;
  const std::vector<std::uint32_t>& sorted = Sorted(names, direction);
  std::string buffer;
  const auto end_of = [&](std::uint32_t tensor) {
    const std::string_view name = NameOf(names, tensor, buffer);
    if (name.size() <= end.size()) return name;
    return backwards ? name.substr(name.size() - end.size()) : name.substr(0, end.size());
  };
  const auto first = std::partition_point(sorted.begin(), sorted.end(), [&](std::uint32_t tensor) {
    return ComesBefore(end_of(tensor), end, backwards);
  });
  const auto has_end = [&](std::uint32_t tensor) { return end_of(tensor) == end; };
  // Most ranges are short: looked for from their beginning, not in all that follows.
  auto last = first;
  std::ptrdiff_t step = 1;
  while (sorted.end() - last > step && has_end(last[step])) {
    last += step;
    step *= 2;
  }
  last = std::partition_point(last, last + std::min(step + 1, sorted.end() - last), has_end);
  return {first, last};
}

// One selection.
class TensorSelector::Search {
 public:
  Search(const TensorSelector& selector, const SelectionScope& scope)
      : selector_(selector), scope_(scope) {}

  // False if the pattern means nothing in scope.
  bool Add(const Glob& pattern) {
    const TensorIndex& index = selector_.index_;
    std::optional<std::uint32_t> tensor = index.FindName(pattern.text());
    if (!tensor) tensor = index.FindFile(pattern.text());
    if (tensor) return Take(*tensor);
    if (pattern.IsLiteral()) return false;
    const bool by_name = AddMatches(Names::kTensors, pattern);
    const bool by_file = AddMatches(Names::kFiles, pattern);
    return by_name || by_file;
  }

  void AddAll() {
    for (std::uint32_t i = 0; i < selector_.index_.size(); ++i) Take(i);
  }

  std::vector<std::uint32_t> Finish() {
    SortFound();
    return std::move(found_);
  }

 private:
  bool Take(std::uint32_t tensor) {
    if (scope_.contains && !scope_.contains(tensor)) return false;
    // Overlapping patterns find a tensor again and again. A table of all tensors would tell, but
    // cost a command for one tensor as much as one for all.
    if (found_.size() >= sort_at_) {
      SortFound();
      sort_at_ = std::max(2 * found_.size(), kFoundBeforeSorting);
    }
    found_.push_back(tensor);
    return true;
  }

  void SortFound() {
    // As one pattern alone finds them.
    if (!std::ranges::is_sorted(found_)) std::ranges::sort(found_);
    found_.erase(std::unique(found_.begin(), found_.end()), found_.end());
  }

  bool Try(Names names, const Glob& pattern, std::uint32_t tensor) {
    if (++tried_ % kNamesPerCheck == 0 && scope_.cancelled && scope_.cancelled()) {
      throw Error(EINTR, "cancelled while matching " + Quoted(pattern.text()));
    }
    return pattern.Matches(selector_.NameOf(names, tensor, buffer_)) && Take(tensor);
  }

  bool AddMatches(Names names, const Glob& pattern) {
    bool any = false;
    if (const auto candidates = Candidates(names, pattern)) {
      for (const std::uint32_t tensor : *candidates) any |= Try(names, pattern, tensor);
    } else if (names == Names::kFiles) {
      for (const std::uint32_t tensor : selector_.Renamed()) any |= Try(names, pattern, tensor);
    } else {
      const std::uint32_t count = selector_.index_.size();
      for (std::uint32_t tensor = 0; tensor < count; ++tensor) any |= Try(names, pattern, tensor);
    }
    return any;
  }

  // The tensors that may match; nothing where all may, or where sorting does not pay yet.
  std::optional<std::span<const std::uint32_t>> Candidates(Names names, const Glob& pattern) {
    const std::string_view prefix = pattern.literal_prefix();
    const std::string_view suffix = pattern.literal_suffix();
    if ((prefix.empty() && suffix.empty()) || selector_.Count(names) <= kFewCandidates) return {};
    if (selector_.whole_readings_ < kReadingsBeforeSorting) {
      ++selector_.whole_readings_;
      return {};
    }
    std::optional<std::span<const std::uint32_t>> best;
    if (!prefix.empty()) best = selector_.Range(names, Direction::kForwards, prefix);
    if (!suffix.empty() && (!best || best->size() > kFewCandidates)) {
      const auto range = selector_.Range(names, Direction::kBackwards, suffix);
      if (!best || range.size() < best->size()) best = range;
    }
    return best;
  }

  const TensorSelector& selector_;
  const SelectionScope& scope_;
  std::vector<std::uint32_t> found_;
  std::size_t sort_at_ = kFoundBeforeSorting;
  std::string buffer_;
  std::uint64_t tried_ = 0;
};

std::vector<std::uint32_t> TensorSelector::Select(std::span<const Glob> patterns,
                                                  const SelectionScope& scope) const {
  Search search(*this, scope);
  if (patterns.empty()) search.AddAll();
  std::unordered_set<const Glob*, HashOfText, EqualGlobs> seen;
  std::vector<const Glob*> unmatched;
  for (const Glob& pattern : patterns) {
    if (seen.insert(&pattern).second && !search.Add(pattern)) unmatched.push_back(&pattern);
  }
  if (unmatched.empty()) return search.Finish();
  std::string message = "no tensor " + scope.which + (scope.which.empty() ? "" : " ") + "matches ";
  if (unmatched.size() > 1) message += "these " + Grouped(unmatched.size()) + " patterns: ";
  for (std::size_t i = 0; i < std::min(unmatched.size(), kNamedInMessages); ++i) {
    message += (i > 0 ? ", " : "") + Quoted(unmatched[i]->text());
  }
  if (unmatched.size() > kNamedInMessages) message += ", ...";
  throw Error(ENOENT, message);
}

}  // namespace safetensorfs

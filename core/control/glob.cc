#include "core/control/glob.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <optional>

#include "core/base/utf8.h"

namespace safetensorfs {
namespace {

struct Character {
  char32_t code;
  std::size_t length;  // bytes
};

// The first character of `text`, which is not empty. Bytes that are not UTF-8 get codes beyond
// Unicode, so that they equal themselves only.
Character FirstCharacter(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t length = Utf8CharacterLength(text);
  if (length == 0) return {0x110000u + lead, 1};
  if (length == 1) return {lead, 1};
  char32_t code = lead & (0xFFu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    code = (code << 6) | (static_cast<unsigned char>(text[i]) & 0x3Fu);
  }
  return {code, length};
}

using Ranges = std::vector<std::pair<char32_t, char32_t>>;

struct CharacterClass {
  std::string_view name;
  int (*holds)(int);
};

constexpr CharacterClass kClasses[] = {
    {"alnum", std::isalnum}, {"alpha", std::isalpha}, {"blank", std::isblank},
    {"cntrl", std::iscntrl}, {"digit", std::isdigit}, {"graph", std::isgraph},
    {"lower", std::islower}, {"print", std::isprint}, {"punct", std::ispunct},
    {"space", std::isspace}, {"upper", std::isupper}, {"xdigit", std::isxdigit},
};
constexpr std::size_t kLongestClass = 6;

// The ASCII characters of a class; nothing if there is no such class.
std::optional<Ranges> ClassRanges(std::string_view name) {
  for (const CharacterClass& known : kClasses) {
    if (known.name != name) continue;
    Ranges ranges;
    for (int c = 0; c < 0x80; ++c) {
      if (known.holds(c)) ranges.emplace_back(c, c);
    }
    return ranges;
  }
  return std::nullopt;
}

void SortAndMerge(Ranges& ranges) {
  std::sort(ranges.begin(), ranges.end());
  Ranges merged;
  for (const auto& [low, high] : ranges) {
    if (!merged.empty() && low <= merged.back().second) {
      merged.back().second = std::max(merged.back().second, high);
    } else {
      merged.emplace_back(low, high);
    }
  }
  ranges = std::move(merged);
}

}  // namespace

// Turns text and quoting into elements.
class GlobParser {
 public:
  GlobParser(Glob& glob, const std::vector<bool>& quoted)
      : glob_(glob), text_(glob.text_), quoted_(quoted) {}

  void Parse() {
    std::size_t at = 0;
    while (at < text_.size()) {
      const std::size_t after = Special(at);
      if (after == at) {
        ++at;
        continue;
      }
      AddLiteral(at);
      literal_ = at = after;
      glob_.elements_.push_back(special_);
    }
    if (glob_.elements_.empty()) {
      glob_.prefix_ = glob_.suffix_ = text_.size();
      return;
    }
    glob_.suffix_ = text_.size() - literal_;
    AddLiteral(text_.size());
    const Glob::Element& first = glob_.elements_.front();
    glob_.prefix_ = first.kind == Glob::Kind::kLiteral ? first.size : 0;
  }

 private:
  bool Is(std::size_t at, char special) const {
    return at < text_.size() && text_[at] == special && !(at < quoted_.size() && quoted_[at]);
  }

  void AddLiteral(std::size_t end) {
    if (end > literal_) {
      glob_.elements_.push_back({Glob::Kind::kLiteral, literal_, end - literal_});
    }
  }

  // Makes special_ what stands at `at` and returns where it ends; `at` if it is a plain byte.
  std::size_t Special(std::size_t at) {
    if (Is(at, '*')) {
      special_ = {Glob::Kind::kStar};
      return at + 1;
    }
    if (Is(at, '?')) {
      special_ = {Glob::Kind::kCharacter};
      return at + 1;
    }
    if (!Is(at, '[')) return at;
    Glob::Set set;
    const std::size_t end = Bracket(at + 1, set);
    if (end == 0) return at;
    SortAndMerge(set.ranges);
    special_ = {Glob::Kind::kSet, glob_.sets_.size()};
    glob_.sets_.push_back(std::move(set));
    return end;
  }

  // Reads what follows a '['. Returns the place after its ']', 0 if there is none.
  std::size_t Bracket(std::size_t at, Glob::Set& set) {
    set.negated = Is(at, '!') || Is(at, '^');
    if (set.negated) ++at;
    const std::size_t first = at;
    std::vector<std::size_t> members;
    while (at < text_.size() && !(open_ended_.size() > at && open_ended_[at])) {
      if (at > first && Is(at, ']')) return at + 1;
      if (at > first) members.push_back(at);
      at = Member(at, set.ranges);
    }
    // Whatever '[' leads to these places finds no ']' either. Remembering them keeps a long row of
    // '[' from being read to its end once for each.
    open_ended_.resize(text_.size());
    for (const std::size_t member : members) open_ended_[member] = true;
    return 0;
  }

  // Reads a character, a range or a class and returns where it ends.
  std::size_t Member(std::size_t at, Ranges& ranges) const {
    if (Is(at, '[') && Is(at + 1, ':')) {
      const std::string_view name = text_.substr(at + 2, kLongestClass + 2);
      const std::size_t end = name.find(":]");
      if (end != name.npos) {
        if (const auto known = ClassRanges(name.substr(0, end))) {
          ranges.insert(ranges.end(), known->begin(), known->end());
          return at + 2 + end + 2;
        }
      }
    }
    const Character low = FirstCharacter(text_.substr(at));
    at += low.length;
    if (!Is(at, '-') || at + 1 >= text_.size() || Is(at + 1, ']')) {
      ranges.emplace_back(low.code, low.code);
      return at;
    }
    const Character high = FirstCharacter(text_.substr(at + 1));
    if (low.code <= high.code) ranges.emplace_back(low.code, high.code);
    return at + 1 + high.length;
  }

  Glob& glob_;
  std::string_view text_;
  const std::vector<bool>& quoted_;
  std::size_t literal_ = 0;  // where the present run of plain bytes began
  Glob::Element special_{};
  std::vector<bool> open_ended_;
};

Glob::Glob(std::string text, const std::vector<bool>& quoted) : text_(std::move(text)) {
  GlobParser(*this, quoted).Parse();
}

bool Glob::Set::Holds(char32_t character) const {
  auto after = std::upper_bound(
      ranges.begin(), ranges.end(), character,
      [](char32_t code, const std::pair<char32_t, char32_t>& range) { return code < range.first; });
  const bool listed = after != ranges.begin() && character <= std::prev(after)->second;
  return listed != negated;
}

// How many bytes at the beginning of `name` the element takes; 0 if it does not match there.
std::size_t Glob::MatchLength(const Element& element, std::string_view name) const {
  if (element.kind == Kind::kLiteral) {
    const std::string_view literal = std::string_view(text_).substr(element.begin, element.size);
    return name.starts_with(literal) ? literal.size() : 0;
  }
  if (name.empty()) return 0;
  const Character character = FirstCharacter(name);
  if (element.kind == Kind::kSet && !sets_[element.begin].Holds(character.code)) return 0;
  return character.length;
}

// When an element fails, only the last star may take one character more: an earlier one would
// merely find the elements between the stars later than it did.
bool Glob::Matches(std::string_view name) const {
  if (IsLiteral()) return name == text_;
  if (!name.starts_with(literal_prefix()) || !name.ends_with(literal_suffix())) return false;
  std::size_t at = 0;
  std::size_t element = 0;
  std::size_t after_star = 0;  // the element after the last star; 0 before there is one
  std::size_t star_end = 0;
  while (element < elements_.size() || at < name.size()) {
    if (element < elements_.size()) {
      if (elements_[element].kind == Kind::kStar) {
        after_star = ++element;
        star_end = at;
        if (element == elements_.size()) return true;
        continue;
      }
      if (const std::size_t length = MatchLength(elements_[element], name.substr(at))) {
        at += length;
        ++element;
        continue;
      }
    }
    if (after_star == 0 || star_end == name.size()) return false;
    star_end += FirstCharacter(name.substr(star_end)).length;
    at = star_end;
    element = after_star;
  }
  return true;
}

}  // namespace safetensorfs

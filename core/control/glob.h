#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace safetensorfs {

/// A pattern for names, as bash matches them in `case`, except that names are no paths: '/' and a
/// leading '.' are characters like any other.
///
///   *        any bytes, none too
///   ?        one UTF-8 character (a byte that is not part of one counts as a character)
///   [a-z_]   one of these characters; [!a-z] and [^a-z] one of the others; ranges go by code
///            point, classes such as [:digit:] hold ASCII only
///
/// A '[' that no ']' closes stands for itself. Immutable and thread-safe. Matching takes time in
/// the product of both lengths at worst, never exponential.
class Glob {
 public:
  /// The pattern that `text`, a word without its quotes, spells. Bytes for which `quoted` is true
  /// stand for themselves; an empty `quoted` means that none are.
  explicit Glob(std::string text, const std::vector<bool>& quoted = {});

  bool Matches(std::string_view name) const;

  /// True if nothing in the pattern is special: it matches text() only.
  bool IsLiteral() const { return elements_.empty(); }

  /// The word without its quotes, special characters included.
  const std::string& text() const { return text_; }

  /// What every match begins with; all of text() if the pattern is literal.
  std::string_view literal_prefix() const { return std::string_view(text_).substr(0, prefix_); }

  /// What every match ends with; all of text() if the pattern is literal.
  std::string_view literal_suffix() const {
    return std::string_view(text_).substr(text_.size() - suffix_);
  }

  /// Equal texts with equal characters quoted.
  friend bool operator==(const Glob&, const Glob&) = default;

 private:
  friend class GlobParser;

  enum class Kind : unsigned char { kLiteral, kStar, kCharacter, kSet };

  struct Element {
    Kind kind;
    std::size_t begin = 0;  // kLiteral: place in text_; kSet: number in sets_
    std::size_t size = 0;   // kLiteral: bytes, at least 1

    friend bool operator==(const Element&, const Element&) = default;
  };

  struct Set {
    bool negated = false;
    // Code points, both ends included; sorted, without overlaps.
    std::vector<std::pair<char32_t, char32_t>> ranges;

    bool Holds(char32_t character) const;
    friend bool operator==(const Set&, const Set&) = default;
  };

  std::size_t MatchLength(const Element& element, std::string_view name) const;

  std::string text_;
  std::vector<Element> elements_;  // none if the pattern is literal
  std::vector<Set> sets_;
  std::size_t prefix_ = 0;
  std::size_t suffix_ = 0;
};

}  // namespace safetensorfs

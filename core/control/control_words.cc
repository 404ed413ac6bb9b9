#include "core/control/control_words.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/base/error.h"

namespace safetensorfs {
namespace {

constexpr std::string_view kSimpleEscapes = "abeEfnrtv\\'\"?";
constexpr std::string_view kSimpleValues = "\a\b\x1B\x1B\f\n\r\t\v\\'\"?";

std::optional<unsigned> DigitOf(char c, unsigned base) {
  unsigned digit = base;
  if (c >= '0' && c <= '9') digit = static_cast<unsigned>(c - '0');
  if (c >= 'a' && c <= 'f') digit = static_cast<unsigned>(c - 'a') + 10;
  if (c >= 'A' && c <= 'F') digit = static_cast<unsigned>(c - 'A') + 10;
  if (digit >= base) return std::nullopt;
  return digit;
}

bool IsCharacter(std::uint32_t code) {
  return code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
}

void AppendUtf8(std::uint32_t code, std::string& out) {
  if (code < 0x80) {
    out += static_cast<char>(code);
    return;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  out += static_cast<char>((0xF0u << (3 - more)) | (code >> (6 * more)));
  for (int i = more - 1; i >= 0; --i) out += static_cast<char>(0x80u | ((code >> (6 * i)) & 0x3Fu));
}

class WordSplitter {
 public:
  explicit WordSplitter(std::string_view line) : line_(line) {
    if (const std::size_t nul = line.find('\0'); nul != line.npos) Fail("NUL byte", nul);
  }

  std::vector<ControlWord> Split() {
    std::vector<ControlWord> words;
    while (true) {
      while (at_ < line_.size() && AtBlank()) ++at_;
      if (at_ == line_.size() || line_[at_] == '#') return words;
      word_ = {};
      while (at_ < line_.size() && !AtBlank()) Part();
      words.push_back(std::move(word_));
    }
  }

 private:
  [[noreturn]] void Fail(const std::string& what, std::size_t place, const char* rule = "") const {
    const auto column =
        1 + std::count_if(line_.begin(), line_.begin() + static_cast<std::ptrdiff_t>(place),
                          [](char c) { return (c & 0xC0) != 0x80; });
    throw Error(EINVAL, what + " at column " + std::to_string(column) + rule);
  }

  bool AtBlank() const {
    const char c = line_[at_];
    return c == ' ' || c == '\t' || c == '\n' || (c == '\r' && at_ + 1 == line_.size());
  }

  void Append(std::string_view text, bool quoted) {
    word_.text += text;
    word_.quoted.resize(word_.text.size(), quoted);
  }

  void Part() {
    switch (line_[at_]) {
      case '\\':
        return Backslash();
      case '\'':
        return SingleQuotes();
      case '"':
        return DoubleQuotes();
      case '$':
        if (line_.substr(at_ + 1, 1) == "'") return AnsiQuotes();
        // Bash translates $"..." into the user's language, which changes nothing here.
        if (line_.substr(at_ + 1, 1) == "\"") {
          ++at_;
          return DoubleQuotes();
        }
        break;
      default:
        break;
    }
    Append(line_.substr(at_++, 1), false);
  }

  void Backslash() {
    if (at_ + 1 == line_.size()) Fail("backslash", at_, " quotes nothing");
    if (line_[at_ + 1] != '\n') Append(line_.substr(at_ + 1, 1), true);
    at_ += 2;
  }

  void SingleQuotes() {
    const std::size_t end = line_.find('\'', at_ + 1);
    if (end == line_.npos) Fail("quote '", at_, " is not closed");
    Append(line_.substr(at_ + 1, end - at_ - 1), true);
    at_ = end + 1;
  }

  // Where the quotes that `text_begin` follows are closed; a backslash covers the next byte.
  std::size_t Closing(char quote, std::size_t text_begin) const {
    for (std::size_t at = text_begin; at < line_.size(); ++at) {
      if (line_[at] == quote) return at;
      if (line_[at] == '\\') ++at;
    }
    Fail(quote == '"' ? "quote \"" : "quote $'", at_, " is not closed");
  }

  void DoubleQuotes() {
    const std::size_t end = Closing('"', at_ + 1);
    for (std::size_t at = at_ + 1; at < end; ++at) {
      if (line_[at] == '\\' && line_[at + 1] == '\n') {
        ++at;
        continue;
      }
      if (line_[at] == '\\' && std::string_view("$`\"\\").find(line_[at + 1]) != line_.npos) ++at;
      Append(line_.substr(at, 1), true);
    }
    at_ = end + 1;
  }

  void AnsiQuotes() {
    const std::size_t end = Closing('\'', at_ + 2);
    for (std::size_t at = at_ + 2; at < end;) {
      const std::size_t escape = std::min(line_.find('\\', at), end);
      Append(line_.substr(at, escape - at), true);
      at = escape == end ? end : Escape(escape, end);
    }
    at_ = end + 1;
  }

  // The number that up to `most` digits from `at` on spell; moves `at` behind them.
  std::optional<std::uint32_t> Number(std::size_t& at, std::size_t end, unsigned base,
                                      std::size_t most) const {
    const std::size_t begin = at;
    std::uint32_t value = 0;
    for (; at < end && at - begin < most; ++at) {
      const auto digit = DigitOf(line_[at], base);
      if (!digit) break;
      value = value * base + *digit;
    }
    if (at == begin) return std::nullopt;
    return value;
  }

  void AppendByte(std::uint32_t value) {
    const char byte = static_cast<char>(value & 0xFF);
    Append({&byte, 1}, true);
  }

  // Appends what the escape at `escape` in $'...' means and returns where it ends. What is no
  // escape stays as it stands, backslash included.
  std::size_t Escape(std::size_t escape, std::size_t end) {
    const char letter = line_[escape + 1];
    std::size_t at = escape + 2;
    if (const std::size_t simple = kSimpleEscapes.find(letter); simple != line_.npos) {
      Append(kSimpleValues.substr(simple, 1), true);
      return at;
    }
    if (letter == 'c' && at < end) return Control(at);
    if (letter == 'x') {
      if (const auto value = Number(at, end, 16, 2)) {
        AppendByte(*value);
        return at;
      }
    } else if (letter == 'u' || letter == 'U') {
      if (const auto code = Number(at, end, 16, letter == 'u' ? 4 : 8)) {
        if (!IsCharacter(*code)) {
          Fail(std::string(line_.substr(escape, at - escape)), escape, " is no character");
        }
        std::string character;
        AppendUtf8(*code, character);
        Append(character, true);
        return at;
      }
    } else if (DigitOf(letter, 8)) {
      --at;
      AppendByte(*Number(at, end, 8, 3));
      return at;
    }
    Append(line_.substr(escape, 2), true);
    return escape + 2;
  }

  std::size_t Control(std::size_t at) {
    const char c = line_[at];
    const bool lower = c >= 'a' && c <= 'z';
    AppendByte(c == '?' ? 0x7F : static_cast<unsigned>(lower ? c - 32 : c) & 0x1F);
    // A backslash after \c is itself escaped.
    return c == '\\' && line_[at + 1] == '\\' ? at + 2 : at + 1;
  }

  std::string_view line_;
  std::size_t at_ = 0;
  ControlWord word_;
};

}  // namespace

std::vector<ControlWord> SplitWords(std::string_view line) { return WordSplitter(line).Split(); }

}  // namespace safetensorfs

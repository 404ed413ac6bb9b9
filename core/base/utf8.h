#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace safetensorfs {

/// The length in bytes of the first character of `text`, 1 to 4; 0 if what stands there is not a
/// whole well-formed UTF-8 character (Unicode table 3-7: no overlong forms, no surrogates).
std::size_t Utf8CharacterLength(std::string_view text);

/// Checks UTF-8 that arrives in pieces; a character may be cut anywhere. Not thread-safe.
class Utf8Validator {
 public:
  /// False once anything that has been fed so far is not UTF-8.
  bool Feed(std::string_view piece);

  /// True if all that was fed is UTF-8 and no character is left open.
  bool Finish() const { return valid_ && pending_ == 0; }

  /// Bytes of well-formed characters so far: where the first bad byte is.
  std::uint64_t position() const { return position_; }

 private:
  bool valid_ = true;
  std::size_t pending_ = 0;
  char carry_[4] = {};
  std::uint64_t position_ = 0;
};

}  // namespace safetensorfs

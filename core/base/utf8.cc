#include "core/base/utf8.h"

#include <algorithm>
#include <cstring>

namespace safetensorfs {
namespace {

struct Lead {
  std::size_t length;        // 0: not a lead byte
  unsigned char low = 0x80;  // allowed range of the second byte
  unsigned char high = 0xBF;
};

Lead Classify(unsigned char byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

// True if `text`, shorter than its lead byte asks for, could still become a character.
bool IsOpenCharacter(std::string_view text) {
  const Lead lead = Classify(static_cast<unsigned char>(text[0]));
  if (lead.length <= text.size()) return false;
  for (std::size_t i = 1; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < (i == 1 ? lead.low : 0x80) || byte > (i == 1 ? lead.high : 0xBF)) return false;
  }
  return true;
}

std::size_t AsciiPrefix(std::string_view text) {
  std::size_t at = 0;
  for (std::uint64_t word; at + sizeof word <= text.size(); at += sizeof word) {
    std::memcpy(&word, text.data() + at, sizeof word);
    if ((word & 0x8080808080808080u) != 0) break;
  }
  return at;
}

}  // namespace

std::size_t Utf8CharacterLength(std::string_view text) {
  if (text.empty()) return 0;
  const Lead lead = Classify(static_cast<unsigned char>(text[0]));
  if (lead.length == 0 || lead.length > text.size()) return 0;
  for (std::size_t i = 1; i < lead.length; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < (i == 1 ? lead.low : 0x80) || byte > (i == 1 ? lead.high : 0xBF)) return 0;
  }
  return lead.length;
}

bool Utf8Validator::Feed(std::string_view piece) {
  while (valid_ && pending_ > 0 && !piece.empty()) {
    carry_[pending_++] = piece.front();
    piece.remove_prefix(1);
    const std::string_view open(carry_, pending_);
    if (Utf8CharacterLength(open) == pending_) {
      position_ += pending_;
      pending_ = 0;
    } else if (!IsOpenCharacter(open)) {
      valid_ = false;
    }
  }
  while (valid_ && !piece.empty()) {
    std::size_t length = AsciiPrefix(piece);
    if (length == 0) length = Utf8CharacterLength(piece);
    if (length > 0) {
      position_ += length;
      piece.remove_prefix(length);
    } else if (IsOpenCharacter(piece)) {
      pending_ = piece.size();
      std::copy(piece.begin(), piece.end(), carry_);
      piece = {};
    } else {
      valid_ = false;
    }
  }
  return valid_;
}

}  // namespace safetensorfs

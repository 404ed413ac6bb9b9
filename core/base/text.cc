#include "core/base/text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/utf8.h"

namespace safetensorfs {
namespace {

constexpr char kUpperHex[] = "0123456789ABCDEF";
constexpr char kLowerHex[] = "0123456789abcdef";

void AppendByteEscape(unsigned char byte, std::string& out) {
  switch (byte) {
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    case '\\':
      out += "\\\\";
      return;
    default:
      out += "\\x";
      out += kUpperHex[byte >> 4];
      out += kUpperHex[byte & 15];
  }
}

// C0, DEL and the C1 controls U+0080..U+009F, which terminals obey as well.
bool IsControl(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7F;
  return character.size() == 2 && first == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0;
}

bool IsPlainJson(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x20 && byte < 0x7F && byte != '"' && byte != '\\';
  });
}

}  // namespace

std::string Printable(std::string_view text, std::size_t limit) {
  std::string out;
  std::size_t at = 0;
  while (at < text.size() && out.size() < limit) {
    const std::size_t length = Utf8CharacterLength(text.substr(at));
    const std::string_view character = text.substr(at, std::max<std::size_t>(length, 1));
    if (length == 0 || character == "\\" || IsControl(character)) {
      for (const char c : character) AppendByteEscape(static_cast<unsigned char>(c), out);
    } else {
      out += character;
    }
    at += character.size();
  }
  if (at < text.size()) out += "… (" + Grouped(text.size()) + " bytes)";
  return out;
}

std::string Quoted(std::string_view text) { return '"' + Printable(text, 300) + '"'; }

void AppendJsonString(std::string_view text, std::string& out) {
  if (IsPlainJson(text)) {
    out += '"';
    out += text;
    out += '"';
    return;
  }
  using nlohmann::json;
  out += json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

void AppendShape(std::span<const std::uint64_t> shape, std::string& out) {
  out += '[';
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) out += ',';
    out += std::to_string(shape[i]);
  }
  out += ']';
}

std::string ByteCount(std::uint64_t count) {
  return std::to_string(count) + (count == 1 ? " byte" : " bytes");
}

std::string Grouped(std::uint64_t value) {
  std::string digits = std::to_string(value);
  for (std::ptrdiff_t at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), 1, ',');
  }
  return digits;
}

std::string Hex64(std::uint64_t value) {
  std::string out(16, '0');
  for (std::size_t i = 0; i < 16; ++i) out[15 - i] = kLowerHex[(value >> (4 * i)) & 15];
  return out;
}

}  // namespace safetensorfs

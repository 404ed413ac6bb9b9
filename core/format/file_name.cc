#include "core/format/file_name.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/base/text.h"

namespace safetensorfs {
namespace {

constexpr std::size_t kShortenedPrefix = 200;
constexpr std::string_view kEmptyName = "%empty";

// The escape of the byte at `at`, or nothing where it stands for itself.
std::string_view EscapeOf(std::string_view name, std::size_t at) {
  switch (name[at]) {
    case '/':
      return "%2F";
    case '\0':
      return "%00";
    case '%':
      return "%25";
    case '.':
      return at == 0 ? "%2E" : "";
    default:
      return "";
  }
}

bool ContinuesCharacter(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

std::string EscapeName(std::string_view name) {
  if (name.empty()) return std::string(kEmptyName);
  std::string out;
  out.reserve(name.size() + 8);
  for (std::size_t i = 0; i < name.size(); ++i) {
    const std::string_view escape = EscapeOf(name, i);
    if (escape.empty()) {
      out += name[i];
    } else {
      out += escape;
    }
  }
  return out;
}

bool NeedsShortening(std::string_view name) {
  if (name.size() > kMaxFileName) return true;
  std::size_t size = name.size();
  for (std::size_t i = 0; i < name.size(); ++i) size += EscapeOf(name, i).empty() ? 0 : 2;
  return size > kMaxFileName;
}

std::string ShortenedName(std::string_view name, std::uint64_t attempt) {
  std::string out = EscapeName(name.substr(0, kMaxFileName));
  std::size_t end = kShortenedPrefix;
  if (out[end - 1] == '%') {
    end -= 1;
  } else if (out[end - 2] == '%') {
    end -= 2;
  }
  while (ContinuesCharacter(out[end])) --end;
  out.resize(end);
  out += "%~";
  out += Hex64(XXH3_64bits_withSeed(name.data(), name.size(), attempt));
  return out;
}

std::optional<std::string> UnescapeName(std::string_view file_name) {
  if (file_name == kEmptyName) return std::string();
  std::string out;
  out.reserve(file_name.size());
  for (std::size_t i = 0; i < file_name.size(); ++i) {
    if (file_name[i] != '%') {
      out += file_name[i];
      continue;
    }
    const std::string_view escape = file_name.substr(i, 3);
    if (escape == "%2F") {
      out += '/';
    } else if (escape == "%00") {
      out += '\0';
    } else if (escape == "%25") {
      out += '%';
    } else if (escape == "%2E" && i == 0) {
      out += '.';
    } else {
      return std::nullopt;
    }
    i += 2;
  }
  if (out.empty() || file_name[0] == '.' || file_name.find('/') != file_name.npos) {
    return std::nullopt;
  }
  return out;
}

}  // namespace safetensorfs

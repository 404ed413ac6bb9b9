#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace safetensorfs {

/// `text` on one line and without power over a terminal: control characters, backslashes and bytes
/// that are not UTF-8 become \n, \t, \\ or \xHH. Longer than `limit` bytes, it is cut and says so.
std::string Printable(std::string_view text, std::size_t limit = 4096);

/// Printable text in double quotes, as messages show the names of tensors.
std::string Quoted(std::string_view text);

/// Appends `text` as a JSON string, quotes included. Bytes that are not UTF-8 (a path may hold
/// them, a tensor name cannot) become U+FFFD.
void AppendJsonString(std::string_view text, std::string& out);

/// Appends a shape as JSON and xattrs spell it: [768,2304].
void AppendShape(std::span<const std::uint64_t> shape, std::string& out);

/// "1 byte", "12 bytes".
std::string ByteCount(std::uint64_t count);

/// A count grouped for people: 548,105,171.
std::string Grouped(std::uint64_t value);

/// 16 lower-case hex digits.
std::string Hex64(std::uint64_t value);

}  // namespace safetensorfs

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace safetensorfs {

/// What a tensor is called in a directory. A tensor name may be any UTF-8 string; what a file name
/// cannot hold is escaped, reversibly and without collisions:
///
///   '/', NUL, '%' and a leading '.'   %2F %00 %25 %2E
///   the empty name                    %empty
///   over 250 bytes once escaped       the first 200 (whole characters and escapes), "%~" and 16
///                                     hex digits of XXH3-64 of the name, seeded with `attempt`
///
/// 250 leaves room for ".npy" in the 255 bytes that a file name may have.
inline constexpr std::size_t kMaxFileName = 250;

/// The escaped name, of any length.
std::string EscapeName(std::string_view name);

/// True if EscapeName(name) is longer than a file name may be.
bool NeedsShortening(std::string_view name);

/// The file name of a name that NeedsShortening. Two names may share it: then raise `attempt`.
std::string ShortenedName(std::string_view name, std::uint64_t attempt);

/// The name that EscapeName turns into `file_name`; nothing if there is none, e.g. for escapes that
/// it does not write ("%41", "%2f").
std::optional<std::string> UnescapeName(std::string_view file_name);

}  // namespace safetensorfs

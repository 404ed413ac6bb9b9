#pragma once

#include <string_view>

namespace safetensorfs {

/// True if the reference's JSON library, serde_json without its float_roundtrip feature, takes
/// `text`, a well-formed JSON number, for a finite double. It multiplies the first digits by a
/// power of ten and refuses what overflows on the way, so a few numbers just below the largest
/// double are errors there, in fields that nobody reads too.
bool ReferenceTakesNumber(std::string_view text);

}  // namespace safetensorfs

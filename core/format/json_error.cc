#include "core/format/json_error.h"

#include <string_view>

#include "core/base/text.h"

namespace safetensorfs {

std::string JsonErrorDetail(const char* what) {
  std::string_view text(what);
  // "[json.exception.parse_error.101] parse error at line 1, column 2: DETAIL"
  if (const auto column = text.find("column "); column != text.npos) {
    if (const auto colon = text.find(": ", column); colon != text.npos) {
      text.remove_prefix(colon + 2);
    }
  } else if (const auto bracket = text.find("] "); bracket != text.npos) {
    text.remove_prefix(bracket + 2);
  }
  return Printable(text, 200);
}

}  // namespace safetensorfs

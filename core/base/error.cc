#include "core/base/error.h"

#include <cerrno>
#include <system_error>

#include "core/base/text.h"

namespace safetensorfs {

std::string ErrnoText(int code) { return std::generic_category().message(code); }

void ThrowErrno(std::string_view subject, std::string_view what) {
  const int code = errno;
  throw Error(code, Printable(subject) + ": " + std::string(what) + ": " + ErrnoText(code));
}

}  // namespace safetensorfs

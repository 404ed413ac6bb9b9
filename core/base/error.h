#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace safetensorfs {

/// The one exception of this program: a positive errno for the caller of a system call, and a
/// sentence for a person that names subject, place, rule and values.
class Error : public std::runtime_error {
 public:
  Error(int code, const std::string& message) : std::runtime_error(message), code_(code) {}

  /// A positive errno.
  int code() const { return code_; }

 private:
  int code_;
};

/// Throws an Error from the present errno: "SUBJECT: WHAT: No such file or directory".
[[noreturn]] void ThrowErrno(std::string_view subject, std::string_view what);

/// The text of an errno, e.g. "Permission denied". Thread-safe.
std::string ErrnoText(int code);

}  // namespace safetensorfs

#pragma once

#include <mutex>
#include <string>

namespace safetensorfs {

/// Where lines for the operator go: stderr, or syslog once the daemon is in the background.
/// A line that repeats the one before is dropped: a program that tries again and again must not
/// fill a disk. Thread-safe.
class Log {
 public:
  void Line(const std::string& text);
  void UseSyslog();

 private:
  std::mutex mutex_;
  std::string last_;
  bool uses_syslog_ = false;
};

}  // namespace safetensorfs

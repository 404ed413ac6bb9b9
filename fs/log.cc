#include "fs/log.h"

#include <syslog.h>

#include <cstdio>

namespace safetensorfs {

void Log::Line(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (text == last_) return;
  last_ = text;
  if (uses_syslog_) {
    syslog(LOG_WARNING, "%s", text.c_str());
  } else {
    std::fprintf(stderr, "safetensorfs: %s\n", text.c_str());
  }
}

void Log::UseSyslog() {
  const std::lock_guard lock(mutex_);
  openlog("safetensorfs", LOG_PID, LOG_DAEMON);
  uses_syslog_ = true;
}

}  // namespace safetensorfs

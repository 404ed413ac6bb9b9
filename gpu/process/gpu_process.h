#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"

namespace safetensorfs {

/// Whom processes that use the GPU run as. CUDA shares memory between processes of one user only.
struct Identity {
  uid_t uid;
  gid_t gid;
  std::vector<gid_t> groups;
};

/// A user with the groups that the system's databases give them; `gid` where they know no user.
Identity IdentityOf(uid_t uid, gid_t gid);

/// A child that runs this program's own file under another name, with nothing of ours open but a
/// socket. Only such a process touches the driver: it may die of it. Killed when it goes.
class GpuProcess {
 public:
  /// What argv[0] says then.
  static constexpr const char* kName = "safetensorfs-gpu";
  /// The descriptor of the child's end of the socket pair.
  static constexpr int kSocket = 3;

  /// Starts it with these words after its name, as this user or as we are. Throws Error.
  GpuProcess(const std::vector<std::string>& words, const std::optional<Identity>& identity);
  GpuProcess(const GpuProcess&) = delete;
  GpuProcess& operator=(const GpuProcess&) = delete;
  ~GpuProcess();

  /// Our end of the socket pair, to be taken once.
  UniqueFd TakeSocket() { return std::move(socket_); }

  /// Any thread may, also when it has ended.
  void Kill();
  /// How it ended, "was killed by SIGKILL"; nothing while it runs, after waiting this long. One
  /// thread at a time.
  std::optional<std::string> WaitForEnd(std::chrono::milliseconds patience);

 private:
  pid_t pid_ = 0;
  UniqueFd pidfd_;
  UniqueFd socket_;
  std::optional<std::string> end_;
};

}  // namespace safetensorfs

#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace safetensorfs {

/// The process that a thread belongs to; `thread` itself where that is not known.
pid_t ProcessOf(pid_t thread);

/// The program's name as the kernel has it, "" if the process is gone.
std::string ProgramOf(pid_t process);

/// True if a thread that waits for this program has got a signal that ends it or asks it to end
/// (HUP, INT, QUIT, KILL, TERM) and does not block it, or is gone. Other signals, a finished child
/// or a resized window, interrupt a request just the same. 0, a process of another PID namespace,
/// counts as gone.
bool WantsToEnd(pid_t thread);

/// True if a thread is on its way out because of a signal: what it closes then, it did not mean to.
bool IsDyingOfSignal(pid_t thread);

/// Processes that have a file of the file system `device` (stat's st_dev; 0: of any) open for whose
/// path `is_meant` is true, as far as /proc shows them to us. Asks no file system.
std::vector<pid_t> ProcessesWithOpenFile(
    dev_t device, const std::function<bool(const std::string& path)>& is_meant);

/// The st_dev of the file system at `path`, without asking it: 0 if there is none.
dev_t DeviceOfPath(const std::string& path);

}  // namespace safetensorfs

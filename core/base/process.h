#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace safetensorfs {

/// The process that a thread belongs to; `thread` itself where that is not known.
pid_t ProcessOf(pid_t thread);

/// The program's name as the kernel has it, "" if the process is gone.
std::string ProgramOf(pid_t process);

/// True if a thread that waits for this program has got a signal that ends it or asks it to end
/// (HUP, INT, QUIT, KILL, TERM), or is gone. Other signals, a finished child or a resized window,
/// interrupt a request just the same. 0, a process of another PID namespace, counts as gone.
bool WantsToEnd(pid_t thread);

/// Processes that have a file open whose path ends in `suffix`, as far as /proc shows it to us.
std::vector<pid_t> ProcessesWithOpenFile(std::string_view suffix);

}  // namespace safetensorfs

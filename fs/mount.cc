#include "fs/mount.h"

#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <syslog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/process.h"
#include "core/base/text.h"
#include "core/device/cpu_device.h"
#include "core/tree/source_tree.h"
#include "fs/filesystem.h"
#include "fs/operations.h"
#include "fs/read_ahead.h"
#include "fs/reply.h"
#include "fs/service_notification.h"

namespace safetensorfs {
namespace {

// MOUNTPOINT, absolute and without symbolic links. Throws Error with a line that says what to do.
std::string ResolveMountpoint(const std::string& path) {
  struct stat status;
  struct statvfs answer;
  // The kernel may know what stat says of a mount whose daemon is gone; statvfs asks it.
  if (stat(path.c_str(), &status) != 0 || statvfs(path.c_str(), &answer) != 0) {
    if (errno == ENOTCONN) {
      throw Error(ENOTCONN, Printable(path) + ": is a dead mount (" + ErrnoText(ENOTCONN) +
                                "); clear it with: fusermount3 -uz " + Printable(path));
    }
    ThrowErrno(path, "cannot mount there");
  }
  if (!S_ISDIR(status.st_mode)) {
    throw Error(ENOTDIR, Printable(path) + ": cannot mount there: Not a directory");
  }
  const std::unique_ptr<char, decltype(&std::free)> resolved(realpath(path.c_str(), nullptr),
                                                             &std::free);
  if (!resolved) ThrowErrno(path, "cannot mount there");
  return resolved.get();
}

// libfuse splits options at commas and takes backslashes off.
std::string EscapeOption(const std::string& value) {
  std::string out;
  for (const char c : value) {
    if (c == ',' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::vector<std::string> SessionArguments(const Options& options, const SourceTree& source) {
  std::string words =
      "default_permissions,subtype=safetensorfs,max_read=" + std::to_string(kMaxRead);
  const auto add = [&words](const std::string& word) { words += ',' + word; };
  if (options.allow_other) add("allow_other");
  if (options.allow_root) add("allow_root");
  if (options.auto_unmount) add("auto_unmount");
  for (const std::string& word : options.kernel_options) add(word);
  add("fsname=" + EscapeOption(options.fsname.value_or(source.path)));
  std::vector<std::string> arguments = {"safetensorfs", "-o", words};
  if (options.debug) arguments.push_back("-d");
  return arguments;
}

void LogToSyslog(fuse_log_level level, const char* format, va_list arguments) {
  vsyslog(static_cast<int>(level), format, arguments);
}

Filesystem::Modes ModesOf(const Options& options) {
  return {{options.uid.value_or(geteuid()), options.gid.value_or(getegid()), options.umask},
          options.gid.has_value()};
}

// Blocks the signals that end the daemon, until Unblock: threads that are made meanwhile never take
// them, and the session's loop, which waits in the main thread, does.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigemptyset(&set_);
    for (const int signal : {SIGHUP, SIGINT, SIGTERM}) sigaddset(&set_, signal);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  void Unblock() const { pthread_sigmask(SIG_UNBLOCK, &set_, nullptr); }

 private:
  sigset_t set_;
};

// A libfuse session from mount to unmount.
class Session {
 public:
  Session(const std::vector<std::string>& arguments, const fuse_lowlevel_ops& operations,
          void* user_data) {
    std::vector<char*> pointers;
    for (const std::string& argument : arguments) {
      pointers.push_back(const_cast<char*>(argument.c_str()));
    }
    fuse_args args = FUSE_ARGS_INIT(static_cast<int>(pointers.size()), pointers.data());
    session_ = fuse_session_new(&args, &operations, sizeof operations, user_data);
    fuse_opt_free_args(&args);
    if (session_ == nullptr)
      throw Error(EINVAL, "libfuse refuses the options " + Quoted(arguments[2]));
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() {
    if (is_mounted_) fuse_session_unmount(session_);
    fuse_remove_signal_handlers(session_);
    fuse_session_destroy(session_);
  }

  void Mount(const std::string& mountpoint, bool detach) {
    if (fuse_set_signal_handlers(session_) != 0) {
      throw Error(EINVAL, "cannot set signal handlers");
    }
    const StderrCapture capture(detach);
    if (fuse_session_mount(session_, mountpoint.c_str()) == 0) {
      is_mounted_ = true;
      return;
    }
    std::string reason = capture.Text();
    std::replace(reason.begin(), reason.end(), '\n', ';');
    throw Error(EIO, Printable(mountpoint) + ": cannot mount there: " + Printable(reason));
  }

  // Until unmounted or told by a signal to end; true for either.
  bool Serve(unsigned max_threads) {
    const std::unique_ptr<fuse_loop_config, decltype(&fuse_loop_cfg_destroy)> config(
        fuse_loop_cfg_create(), &fuse_loop_cfg_destroy);
    if (max_threads > 0) fuse_loop_cfg_set_max_threads(config.get(), max_threads);
    const int status = fuse_session_loop_mt(session_, config.get());
    // Who is receiving a request while the mount goes is told so instead of ENODEV.
    return status >= 0 || status == -ECONNABORTED;
  }

 private:
  fuse_session* session_ = nullptr;
  bool is_mounted_ = false;
};

}  // namespace

int Mount(const Options& options, Background& background, DeviceFinder finder) {
  Log log;
  Problems problems;
  const std::unique_ptr<SourceTree> source = OpenSource(options.source, problems);
  if (!source) {
    for (const Problem& problem : problems) log.Line(problem.text);
    const auto worst = std::ranges::max_element(problems, {}, &Problem::fault);
    return static_cast<int>(worst->fault);
  }
  // What a folder holds that is wrong is among its warnings.
  for (const std::string& warning : AllWarnings(*source)) log.Line(warning);
  try {
    const BlockedSignals blocked;  // in threads made here: the main thread takes them
    auto all_devices = std::make_unique<Devices>(
        *source, std::move(finder), [&log](const std::string& line) { log.Line(line); });
    all_devices->Add(std::make_unique<CpuDevice>());
    Filesystem filesystem(*source, std::move(all_devices), ModesOf(options), log);
    filesystem.on_init = [&] {
      if (options.foreground) {
        NotifyReady();
      } else {
        log.UseSyslog();
        fuse_set_log_func(LogToSyslog);
        background.Ready();
      }
    };
    const std::string mountpoint = ResolveMountpoint(options.mountpoint);
    Session session(SessionArguments(options, *source), MakeOperations(), &filesystem);
    session.Mount(mountpoint, /*detach=*/!options.foreground);
    const dev_t device = DeviceOfPath(mountpoint);
    filesystem.devices->SetMountDevice(device);
    filesystem.on_first_lookup = [device] { RaiseReadAhead(device); };
    // Every path is absolute by now; a daemon keeps no folder busy.
    if (!options.foreground && chdir("/") != 0) ThrowErrno("/", "cannot change to it");
    blocked.Unblock();
    const bool is_ended = session.Serve(options.max_threads);
    filesystem.Stop();
    if (is_ended) return 0;
    log.Line(Printable(mountpoint) + ": the connection to the kernel broke");
  } catch (const Error& error) {
    log.Line(error.what());
  }
  return kExitMount;
}

}  // namespace safetensorfs

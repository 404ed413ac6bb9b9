#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "core/control/control_service.h"
#include "fs/fuse.h"

namespace safetensorfs {

/// A descriptor of `.control` that may write. Its writes are answered by the service when their
/// commands are done. Thread-safe.
class ControlHandle {
 public:
  ControlHandle(ControlService& service, std::uint32_t place, uid_t uid)
      : service_(service), session_(service.Open(place, uid)) {}

  /// Both reply later, from another thread. A line without its end runs when the process that wrote
  /// it closes the descriptor, not when another one does that has a copy of it.
  void Write(fuse_req_t request, std::string text, std::uint64_t offset);
  void Flush(fuse_req_t request);
  /// The last copy is closed: what is left runs, for the report only.
  void Release();

  /// The report, as a read at `offset` finds it. Reads and writes share a position, so the report
  /// begins where the last write left it; for who has gone back from there, at 0.
  std::string Read(std::uint64_t offset, std::size_t size);

 private:
  // A write that has failed does not move the position.
  void SetPosition(std::uint64_t position);

  ControlService& service_;
  std::shared_ptr<ControlSession> session_;
  std::mutex mutex_;  // guards what follows
  pid_t writer_ = 0;  // the process of the last write
  std::uint64_t written_to_ = 0;
  std::uint64_t next_from_start_ = 0;  // where a reader that began at 0 goes on; 0: there is none
};

/// The ControlHandles that are open, each under a number. At the end of a mount no release comes
/// for those that are left. Thread-safe.
class ControlHandles {
 public:
  std::uint64_t Add(std::shared_ptr<ControlHandle> handle);
  /// Null for 0 and for numbers that are gone.
  std::shared_ptr<ControlHandle> Find(std::uint64_t number) const;
  void Remove(std::uint64_t number);

 private:
  mutable std::mutex mutex_;  // guards what follows
  std::unordered_map<std::uint64_t, std::shared_ptr<ControlHandle>> handles_;
  std::uint64_t next_ = 1;
};

}  // namespace safetensorfs

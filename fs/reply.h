#pragma once

#include <cerrno>
#include <cstdint>
#include <exception>
#include <limits>
#include <new>

#include "core/base/error.h"
#include "core/tree/pieces.h"
#include "fs/filesystem.h"
#include "fs/fuse.h"

namespace safetensorfs {

/// Bytes that the kernel asks for in one read, at most. libfuse splices a reply where it fits a
/// pipe with its header; one of the kernel's own limit, 1 MiB, does not fit the largest pipe of a
/// user
/// (/proc/sys/fs/pipe-max-size) and would be copied.
inline constexpr unsigned kMaxRead = 512 << 10;

/// For attributes and names that cannot change while the mount stands, in seconds.
inline constexpr double kForever = std::numeric_limits<std::int32_t>::max();

inline Filesystem& FilesystemOf(fuse_req_t request) {
  return *static_cast<Filesystem*>(fuse_req_userdata(request));
}

/// Runs a request's handler, which replies as the last thing it does. What it throws before that is
/// logged and becomes the reply: no exception leaves through libfuse's C frames.
template <typename Handler>
void Guard(fuse_req_t request, const Handler& handler) noexcept {
  Filesystem& filesystem = FilesystemOf(request);
  int code = EIO;
  try {
    handler(filesystem);
    return;
  } catch (const Error& error) {
    code = error.code();
    filesystem.log.Line(error.what());
  } catch (const std::bad_alloc&) {
    code = ENOMEM;
    filesystem.log.Line("out of memory");
  } catch (const std::exception& error) {
    filesystem.log.Line(error.what());
  }
  fuse_reply_err(request, code);
}

/// Replies to a read. Throws Error (EIO), before it replies, where a source is shorter by now.
void ReplyPieces(fuse_req_t request, const Pieces& pieces);

}  // namespace safetensorfs

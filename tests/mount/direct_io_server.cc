// direct_io_server FILE MOUNTPOINT: shows FILE as MOUNTPOINT/model.safetensors with direct_io, so
// that a shared mapping of it is refused with ENODEV. Prints "ready" once mounted; ends with the
// mount, or on SIGINT, SIGTERM or SIGHUP.
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "tests/mount/one_file_server.h"

namespace {

void Readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, fuse_file_info*) {
  if (offset > 0) {
    fuse_reply_buf(req, nullptr, 0);
    return;
  }
  std::string buffer(size, '\0');
  const struct stat attributes = AttributesOf(req, ino == kFile ? ino : kFile);
  const size_t used = fuse_add_direntry(req, buffer.data(), size, kName, &attributes, 1);
  fuse_reply_buf(req, buffer.data(), used <= size ? used : 0);
}

void Open(fuse_req_t req, fuse_ino_t, fuse_file_info* file) {
  ReplyOpen(req, file, [](fuse_file_info& info) { info.direct_io = 1; });
}

void Read(fuse_req_t req, fuse_ino_t, size_t size, off_t offset, fuse_file_info*) {
  std::vector<char> buffer(size);
  const ssize_t count = pread(SourceOf(req), buffer.data(), size, offset);
  if (count < 0) {
    fuse_reply_err(req, errno);
  } else {
    fuse_reply_buf(req, buffer.data(), static_cast<size_t>(count));
  }
}

}  // namespace

int main(int argc, char** argv) {
  Served served{OpenSource(argc, argv)};
  if (served.source < 0) return 1;
  fuse_lowlevel_ops operations{};
  operations.lookup = Lookup;
  operations.getattr = Getattr;
  operations.readdir = Readdir;
  operations.open = Open;
  operations.read = Read;
  return MountAndServe(argv, operations, &served, fuse_session_loop);
}

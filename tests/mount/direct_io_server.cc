// direct_io_server FILE MOUNTPOINT: shows FILE as MOUNTPOINT/model.safetensors with direct_io, so
// that a shared mapping of it is refused with ENODEV. Prints "ready" once mounted; ends with the
// mount, or on SIGINT, SIGTERM or SIGHUP.
#define FUSE_USE_VERSION 35
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr fuse_ino_t kFile = 2;
constexpr char kName[] = "model.safetensors";

int SourceOf(fuse_req_t req) { return *static_cast<int*>(fuse_req_userdata(req)); }

struct stat AttributesOf(fuse_req_t req, fuse_ino_t ino) {
  struct stat attributes {};
  fstat(SourceOf(req), &attributes);
  attributes.st_ino = ino;
  attributes.st_mode = ino == kFile ? S_IFREG | 0444 : S_IFDIR | 0555;
  return attributes;
}

void Lookup(fuse_req_t req, fuse_ino_t, const char* name) {
  if (std::strcmp(name, kName) != 0) {
    fuse_reply_err(req, ENOENT);
    return;
  }
  fuse_entry_param entry{};
  entry.ino = kFile;
  entry.attr = AttributesOf(req, kFile);
  fuse_reply_entry(req, &entry);
}

void Getattr(fuse_req_t req, fuse_ino_t ino, fuse_file_info*) {
  const struct stat attributes = AttributesOf(req, ino);
  fuse_reply_attr(req, &attributes, 0);
}

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
  if ((file->flags & O_ACCMODE) != O_RDONLY) {
    fuse_reply_err(req, EROFS);
    return;
  }
  file->direct_io = 1;
  fuse_reply_open(req, file);
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
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s FILE MOUNTPOINT\n", argv[0]);
    return 1;
  }
  int source = open(argv[1], O_RDONLY | O_CLOEXEC);
  if (source < 0) {
    std::perror(argv[1]);
    return 1;
  }
  fuse_lowlevel_ops operations{};
  operations.lookup = Lookup;
  operations.getattr = Getattr;
  operations.readdir = Readdir;
  operations.open = Open;
  operations.read = Read;

  char* words[] = {argv[0], nullptr};
  fuse_args arguments = FUSE_ARGS_INIT(1, words);
  fuse_session* session = fuse_session_new(&arguments, &operations, sizeof operations, &source);
  if (session == nullptr || fuse_set_signal_handlers(session) != 0 ||
      fuse_session_mount(session, argv[2]) != 0) {
    return 1;
  }
  std::puts("ready");
  std::fflush(stdout);
  fuse_session_loop(session);
  fuse_session_unmount(session);
  fuse_remove_signal_handlers(session);
  fuse_session_destroy(session);
  close(source);
  return 0;
}

#pragma once

// What the tests' FUSE servers share: a directory that shows one file under a fixed name.
#define FUSE_USE_VERSION 35
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

inline constexpr fuse_ino_t kFile = 2;
inline constexpr char kName[] = "model.safetensors";

/// The user data of a session.
struct Served {
  int source;  // the descriptor of the file that is shown
};

inline int SourceOf(fuse_req_t req) {
  return static_cast<const Served*>(fuse_req_userdata(req))->source;
}

inline struct stat AttributesOf(fuse_req_t req, fuse_ino_t ino) {
  struct stat attributes {};
  fstat(SourceOf(req), &attributes);
  attributes.st_ino = ino;
  attributes.st_mode = ino == kFile ? S_IFREG | 0444 : S_IFDIR | 0555;
  return attributes;
}

inline void Lookup(fuse_req_t req, fuse_ino_t, const char* name) {
  if (std::strcmp(name, kName) != 0) {
    fuse_reply_err(req, ENOENT);
    return;
  }
  fuse_entry_param entry{};
  entry.ino = kFile;
  entry.attr = AttributesOf(req, kFile);
  fuse_reply_entry(req, &entry);
}

inline void Getattr(fuse_req_t req, fuse_ino_t ino, fuse_file_info*) {
  const struct stat attributes = AttributesOf(req, ino);
  fuse_reply_attr(req, &attributes, 0);
}

/// Replies to an open for reading as `prepare` has set it up, and refuses any other.
template <typename Prepare>
void ReplyOpen(fuse_req_t req, fuse_file_info* file, const Prepare& prepare) {
  if ((file->flags & O_ACCMODE) != O_RDONLY) {
    fuse_reply_err(req, EROFS);
    return;
  }
  prepare(*file);
  fuse_reply_open(req, file);
}

/// Mounts, says "ready", lets `serve(session)` run, and unmounts. `user_data` is a Served or more.
/// Returns the exit status.
template <typename Serve>
int MountAndServe(char** argv, const fuse_lowlevel_ops& operations, Served* user_data,
                  const Serve& serve) {
  char* words[] = {argv[0], nullptr};
  fuse_args arguments = FUSE_ARGS_INIT(1, words);
  fuse_session* session = fuse_session_new(&arguments, &operations, sizeof operations, user_data);
  if (session == nullptr || fuse_set_signal_handlers(session) != 0 ||
      fuse_session_mount(session, argv[2]) != 0) {
    return 1;
  }
  std::puts("ready");
  std::fflush(stdout);
  serve(session);
  fuse_session_unmount(session);
  fuse_remove_signal_handlers(session);
  fuse_session_destroy(session);
  return 0;
}

/// The source named on the command line, or -1 after a message.
inline int OpenSource(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s FILE MOUNTPOINT\n", argv[0]);
    return -1;
  }
  const int source = open(argv[1], O_RDONLY | O_CLOEXEC);
  if (source < 0) std::perror(argv[1]);
  return source;
}

// minimal_server MODE FILE OFFSET NBYTES NAME MOUNTPOINT: the least that a FUSE server can do to
// show NBYTES of FILE from OFFSET as the file MOUNTPOINT/NAME, with the mount options, capabilities
// and timeouts of safetensorfs. MODE is how it replies to reads: "splice" gives libfuse the
// descriptor, "mapping" writes from a mapping of FILE. What safetensorfs is slower than this is its
// own doing; it is faster where it has the kernel read further ahead. Runs in the foreground; ends
// with the mount, or on SIGINT, SIGTERM or SIGHUP.
#define FUSE_USE_VERSION 312
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>

namespace {

constexpr fuse_ino_t kFile = 2;
constexpr double kForever = std::numeric_limits<int>::max();

struct Served {
  int source;
  off_t offset, size;   // bytes
  const char* mapping;  // of the source from its start; null: splice
  const char* name;
};

const Served& ServedBy(fuse_req_t request) {
  return *static_cast<const Served*>(fuse_req_userdata(request));
}

struct stat AttributesOf(const Served& served, fuse_ino_t node) {
  struct stat status = {};
  status.st_ino = node;
  status.st_nlink = 1;
  status.st_mode = node == kFile ? S_IFREG | 0444 : S_IFDIR | 0555;
  if (node == kFile) status.st_size = served.size;
  return status;
}

void Initialize(void*, fuse_conn_info* connection) {
  connection->want |= connection->capable & (FUSE_CAP_SPLICE_WRITE | FUSE_CAP_PARALLEL_DIROPS);
  connection->want &= ~static_cast<unsigned>(FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO |
                                             FUSE_CAP_SPLICE_MOVE | FUSE_CAP_AUTO_INVAL_DATA);
  connection->max_read = 524288;  // the mount option's
}

void Lookup(fuse_req_t request, fuse_ino_t, const char* name) {
  const Served& served = ServedBy(request);
  if (std::strcmp(name, served.name) != 0) {
    fuse_reply_err(request, ENOENT);
    return;
  }
  fuse_entry_param entry = {};
  entry.ino = kFile;
  entry.attr = AttributesOf(served, kFile);
  entry.attr_timeout = entry.entry_timeout = kForever;
  fuse_reply_entry(request, &entry);
}

void GetAttributes(fuse_req_t request, fuse_ino_t node, fuse_file_info*) {
  const struct stat status = AttributesOf(ServedBy(request), node);
  fuse_reply_attr(request, &status, kForever);
}

void ReadDirectory(fuse_req_t request, fuse_ino_t, size_t size, off_t offset, fuse_file_info*) {
  const Served& served = ServedBy(request);
  std::array<char, 512> entry;
  const struct stat status = AttributesOf(served, kFile);
  const size_t used =
      offset > 0 ? 0
                 : fuse_add_direntry(request, entry.data(), entry.size(), served.name, &status, 1);
  fuse_reply_buf(request, entry.data(), used <= std::min(size, entry.size()) ? used : 0);
}

void Open(fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
  info->keep_cache = 1;
  info->noflush = 1;
  fuse_reply_open(request, info);
}

void Read(fuse_req_t request, fuse_ino_t, size_t size, off_t offset, fuse_file_info*) {
  const Served& served = ServedBy(request);
  const auto left = static_cast<size_t>(std::max<off_t>(0, served.size - offset));
  const size_t count = std::min(size, left);
  if (served.mapping != nullptr) {
    fuse_reply_buf(request, served.mapping + served.offset + offset, count);
    return;
  }
  fuse_bufvec data = FUSE_BUFVEC_INIT(count);
  data.buf[0].flags = static_cast<fuse_buf_flags>(FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK);
  data.buf[0].fd = served.source;
  data.buf[0].pos = served.offset + offset;
  fuse_reply_data(request, &data, static_cast<fuse_buf_copy_flags>(0));
}

int Serve(const Served& served, const char* source, const char* mountpoint) {
  std::string program = "minimal_server", flag = "-o";
  std::string options = std::string(
                            "default_permissions,subtype=minimal_server,max_read=524288,"
                            "fsname=") +
                        source;
  std::array<char*, 4> words = {program.data(), flag.data(), options.data(), nullptr};
  fuse_args arguments = FUSE_ARGS_INIT(3, words.data());
  fuse_lowlevel_ops operations = {};
  operations.init = Initialize;
  operations.lookup = Lookup;
  operations.getattr = GetAttributes;
  operations.readdir = ReadDirectory;
  operations.open = Open;
  operations.read = Read;
  fuse_session* session =
      fuse_session_new(&arguments, &operations, sizeof operations, const_cast<Served*>(&served));
  fuse_opt_free_args(&arguments);
  if (session == nullptr || fuse_set_signal_handlers(session) != 0 ||
      fuse_session_mount(session, mountpoint) != 0) {
    return 1;
  }
  fuse_loop_config* config = fuse_loop_cfg_create();
  const int status = fuse_session_loop_mt(session, config);
  fuse_loop_cfg_destroy(config);
  fuse_session_unmount(session);
  fuse_remove_signal_handlers(session);
  fuse_session_destroy(session);
  return status < 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7 || (std::strcmp(argv[1], "splice") != 0 && std::strcmp(argv[1], "mapping") != 0)) {
    std::fprintf(stderr,
                 "usage: minimal_server splice|mapping FILE OFFSET NBYTES NAME MOUNTPOINT\n");
    return 1;
  }
  const int source = open(argv[2], O_RDONLY | O_CLOEXEC);
  struct stat status;
  if (source < 0 || fstat(source, &status) != 0) {
    std::perror(argv[2]);
    return 1;
  }
  Served served = {source, std::atol(argv[3]), std::atol(argv[4]), nullptr, argv[5]};
  if (std::strcmp(argv[1], "mapping") == 0) {
    void* mapping =
        mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_SHARED, source, 0);
    if (mapping == MAP_FAILED) {
      std::perror(argv[2]);
      return 1;
    }
    served.mapping = static_cast<const char*>(mapping);
  }
  return Serve(served, argv[2], argv[6]);
}

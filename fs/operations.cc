// The ids of FUSE requests are NodeIds (core/tree.h): the immutable tree's are computed, so nothing
// is kept for them and FORGET is nothing; those of live files (live_files.h) are counted.

#include "fs/operations.h"

#include <fcntl.h>

#include <cstring>
#include <vector>

#include "core/tensor_attributes.h"
#include "fs/reply.h"

namespace safetensorfs {
namespace {

constexpr std::size_t kMaxName = 255;

// Positions in a listing: ".", "..", live files from here, and then the tree's own.
constexpr std::uint64_t kFirstLive = 2;
constexpr std::uint64_t kFirstTree = 16;

void Initialize(void* user_data, fuse_conn_info* connection) {
  const unsigned capable = connection->capable;
  connection->want |= capable & (FUSE_CAP_SPLICE_WRITE | FUSE_CAP_READDIRPLUS);
  // AUTO would fill the kernel's caches with a million entries for a plain `ls`. MOVE would steal
  // pages from the source's page cache. Nothing cached here ever becomes stale.
  connection->want &=
      ~static_cast<unsigned>(FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_SPLICE_MOVE | FUSE_CAP_AUTO_INVAL_DATA);
  static_cast<Filesystem*>(user_data)->on_init();
}

fuse_entry_param TreeEntry(const Filesystem& filesystem, NodeId node) {
  fuse_entry_param entry = {};
  entry.ino = node;
  entry.attr = filesystem.tree.Stat(node);
  entry.attr_timeout = kForever;
  entry.entry_timeout = kForever;
  return entry;
}

struct stat LiveStat(const Filesystem& filesystem, const LiveFiles::File& file, std::uint64_t size) {
  const struct stat times = filesystem.tree.Stat(file.directory);
  return filesystem.tree.Describe(file.ino, file.mode, size, times);
}

void Lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  Guard(request, [=](Filesystem& filesystem) {
    if (std::strlen(name) > kMaxName) {
      fuse_reply_err(request, ENAMETOOLONG);
      return;
    }
    filesystem.lookups.Remember(fuse_req_ctx(request)->pid, parent);
    if (filesystem.live.Has(parent, name)) {
      // The size is not known before it is asked for: no timeout, so that the kernel asks.
      fuse_entry_param entry = {};
      entry.ino = *filesystem.live.Lookup(parent, name);
      entry.attr = LiveStat(filesystem, filesystem.live.FileOf(entry.ino), 0);
      // A reply that fails was interrupted: the kernel will not forget what it never got.
      if (fuse_reply_entry(request, &entry) != 0) filesystem.live.Forget(entry.ino, 1);
      return;
    }
    if (const auto node = filesystem.tree.Lookup(parent, name)) {
      const fuse_entry_param entry = TreeEntry(filesystem, *node);
      fuse_reply_entry(request, &entry);
      return;
    }
    if (name[0] == '.') {
      fuse_reply_err(request, ENOENT);  // a dot name may come to be
      return;
    }
    fuse_entry_param nothing = {};
    nothing.entry_timeout = kForever;
    fuse_reply_entry(request, &nothing);
  });
}

void Forget(fuse_req_t request, fuse_ino_t node, std::uint64_t count) {
  if (LiveFiles::IsLive(node)) FilesystemOf(request).live.Forget(node, count);
  fuse_reply_none(request);
}

void ForgetMulti(fuse_req_t request, std::size_t count, fuse_forget_data* forgets) {
  for (std::size_t i = 0; i < count; ++i) {
    if (LiveFiles::IsLive(forgets[i].ino)) {
      FilesystemOf(request).live.Forget(forgets[i].ino, forgets[i].nlookup);
    }
  }
  fuse_reply_none(request);
}

void GetAttributes(fuse_req_t request, fuse_ino_t node, fuse_file_info*) {
  Guard(request, [=](Filesystem& filesystem) {
    struct stat status;
    if (LiveFiles::IsLive(node)) {
      const LiveFiles::File& file = filesystem.live.FileOf(node);
      status = LiveStat(filesystem, file, filesystem.live.Text(node)->size());
    } else {
      status = filesystem.tree.Stat(node);
    }
    fuse_reply_attr(request, &status, kForever);
  });
}

void Open(fuse_req_t request, fuse_ino_t node, fuse_file_info* info) {
  Guard(request, [=](Filesystem& filesystem) {
    if ((info->flags & O_ACCMODE) != O_RDONLY || (info->flags & O_TRUNC) != 0) {
      fuse_reply_err(request, EROFS);
      return;
    }
    UniqueFd fd;
    if (LiveFiles::IsLive(node)) {
      filesystem.live.Text(node);
    } else {
      fd = filesystem.tree.Open(node);
    }
    info->fh = static_cast<std::uint64_t>(static_cast<std::int64_t>(fd.get()));
    // What a node holds never changes: pages that the kernel has stay good, and nothing is flushed.
    info->keep_cache = 1;
    info->noflush = 1;
    // A reply that fails was interrupted: no release will come.
    if (fuse_reply_open(request, info) == 0) fd.release();
  });
}

void Release(fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
  const UniqueFd fd(static_cast<int>(static_cast<std::int64_t>(info->fh)));
  fuse_reply_err(request, 0);
}

void Read(fuse_req_t request, fuse_ino_t node, std::size_t size, off_t offset,
          fuse_file_info* info) {
  Guard(request, [=](Filesystem& filesystem) {
    const auto from = static_cast<std::uint64_t>(offset);
    if (LiveFiles::IsLive(node)) {
      const auto text = filesystem.live.Text(node);
      const std::string_view part =
          from < text->size() ? std::string_view(*text).substr(from, size) : std::string_view();
      fuse_reply_buf(request, part.data(), part.size());
      return;
    }
    Pieces pieces;
    const int fd = static_cast<int>(static_cast<std::int64_t>(info->fh));
    filesystem.tree.Read(node, fd, from, size, pieces);
    ReplyPieces(request, pieces);
  });
}

// Fills the buffer of one READDIR or READDIRPLUS.
class ListingBuffer {
 public:
  ListingBuffer(fuse_req_t request, std::size_t size, bool is_plus)
      : request_(request), is_plus_(is_plus), buffer_(size) {}

  // False, and nothing added, where it is full. An entry with ino 0 makes the kernel keep nothing.
  bool Add(std::string_view name, const fuse_entry_param& entry, std::uint64_t next) {
    name_.assign(name);
    char* at = buffer_.data() + used_;
    const std::size_t left = buffer_.size() - used_;
    const auto offset = static_cast<off_t>(next);
    const std::size_t needed =
        is_plus_ ? fuse_add_direntry_plus(request_, at, left, name_.c_str(), &entry, offset)
                 : fuse_add_direntry(request_, at, left, name_.c_str(), &entry.attr, offset);
    if (needed > left) return false;
    used_ += needed;
    return true;
  }

  void Reply() { fuse_reply_buf(request_, buffer_.data(), used_); }

 private:
  fuse_req_t request_;
  bool is_plus_;
  std::vector<char> buffer_;
  std::size_t used_ = 0;
  std::string name_;
};

fuse_entry_param BareEntry(NodeId ino, mode_t type) {
  fuse_entry_param entry = {};
  entry.attr.st_ino = ino;
  entry.attr.st_mode = type;
  return entry;
}

// False once the buffer is full.
bool ListOwn(const Filesystem& filesystem, NodeId directory, std::uint64_t position,
             ListingBuffer& buffer) {
  if (position < 1 && !buffer.Add(".", BareEntry(directory, S_IFDIR), 1)) return false;
  if (position < 2 &&
      !buffer.Add("..", BareEntry(filesystem.tree.Parent(directory), S_IFDIR), kFirstLive)) {
    return false;
  }
  std::uint64_t at = kFirstLive;
  for (const LiveFiles::File& file : filesystem.live.files()) {
    if (file.directory != directory) continue;
    ++at;
    if (position < at && !buffer.Add(file.name, BareEntry(file.ino, file.mode), at)) return false;
  }
  return true;
}

void List(fuse_req_t request, fuse_ino_t directory, std::size_t size, off_t offset, bool is_plus) {
  Guard(request, [=](Filesystem& filesystem) {
    const auto position = static_cast<std::uint64_t>(offset);
    ListingBuffer buffer(request, size, is_plus);
    // Full entries go to those who have shown that they ask for each: see LookupMemory.
    const bool is_full =
        is_plus && filesystem.lookups.Remembers(fuse_req_ctx(request)->pid, directory);
    if (ListOwn(filesystem, directory, position, buffer)) {
      const std::uint64_t from = position > kFirstTree ? position - kFirstTree : 0;
      filesystem.tree.List(directory, from, [&](const Tree::Entry& entry) {
        if (filesystem.live.Has(directory, entry.name)) return true;
        const struct stat type = filesystem.tree.Type(entry.node);
        return buffer.Add(entry.name,
                          is_full ? TreeEntry(filesystem, entry.node)
                                  : BareEntry(type.st_ino, type.st_mode),
                          kFirstTree + entry.next);
      });
    }
    buffer.Reply();
  });
}

void ReadDirectory(fuse_req_t request, fuse_ino_t node, std::size_t size, off_t offset,
                   fuse_file_info*) {
  List(request, node, size, offset, /*is_plus=*/false);
}

void ReadDirectoryPlus(fuse_req_t request, fuse_ino_t node, std::size_t size, off_t offset,
                       fuse_file_info*) {
  List(request, node, size, offset, /*is_plus=*/true);
}

void StatFilesystem(fuse_req_t request, fuse_ino_t) {
  Guard(request, [=](Filesystem& filesystem) {
    struct statvfs status = {};
    status.f_bsize = status.f_frsize = 4096;
    status.f_blocks = (filesystem.tree.total_nbytes() + 4095) / 4096;
    status.f_files = filesystem.tree.total_files();
    status.f_namemax = kMaxName;
    fuse_reply_statfs(request, &status);
  });
}

// Replies with `value`, or with its size where the caller asks for that.
void ReplySized(fuse_req_t request, std::string_view value, std::size_t size) {
  if (size == 0) {
    fuse_reply_xattr(request, value.size());
  } else if (size < value.size()) {
    fuse_reply_err(request, ERANGE);
  } else {
    fuse_reply_buf(request, value.data(), value.size());
  }
}

void GetExtendedAttribute(fuse_req_t request, fuse_ino_t node, const char* name,
                          std::size_t size) {
  Guard(request, [=](Filesystem& filesystem) {
    // EOPNOTSUPP ends the kernel's asking: `ls -l` wants an ACL of every file.
    if (std::strncmp(name, "user.", 5) != 0) {
      fuse_reply_err(request, EOPNOTSUPP);
      return;
    }
    const auto tensor = filesystem.tree.FindTensor(node);
    const auto value =
        tensor ? TensorAttribute(*tensor->checkpoint, tensor->tensor, name) : std::nullopt;
    if (value) {
      ReplySized(request, *value, size);
    } else {
      fuse_reply_err(request, ENODATA);
    }
  });
}

void ListExtendedAttributes(fuse_req_t request, fuse_ino_t node, std::size_t size) {
  Guard(request, [=](Filesystem& filesystem) {
    std::string names;
    if (const auto tensor = filesystem.tree.FindTensor(node)) {
      for (const std::string_view name : kTensorAttributes) {
        if (!TensorAttribute(*tensor->checkpoint, tensor->tensor, name)) continue;
        names += name;
        names += '\0';
      }
    }
    ReplySized(request, names, size);
  });
}

// Every operation that would change something. Without handlers the kernel would say "Function not
// implemented".
template <typename... Arguments>
void RefuseToWrite(fuse_req_t request, Arguments...) {
  fuse_reply_err(request, EROFS);
}

template <typename... Arguments>
void RefuseIoctl(fuse_req_t request, Arguments...) {
  fuse_reply_err(request, ENOTTY);
}

}  // namespace

fuse_lowlevel_ops MakeOperations() {
  fuse_lowlevel_ops operations = {};
  operations.init = Initialize;
  operations.lookup = Lookup;
  operations.forget = Forget;
  operations.forget_multi = ForgetMulti;
  operations.getattr = GetAttributes;
  operations.open = Open;
  operations.release = Release;
  operations.read = Read;
  operations.readdir = ReadDirectory;
  operations.readdirplus = ReadDirectoryPlus;
  operations.statfs = StatFilesystem;
  operations.getxattr = GetExtendedAttribute;
  operations.listxattr = ListExtendedAttributes;
  operations.ioctl = RefuseIoctl;
  operations.setattr = RefuseToWrite;
  operations.mknod = RefuseToWrite;
  operations.mkdir = RefuseToWrite;
  operations.unlink = RefuseToWrite;
  operations.rmdir = RefuseToWrite;
  operations.symlink = RefuseToWrite;
  operations.rename = RefuseToWrite;
  operations.link = RefuseToWrite;
  operations.create = RefuseToWrite;
  operations.setxattr = RefuseToWrite;
  operations.removexattr = RefuseToWrite;
  return operations;
}

}  // namespace safetensorfs

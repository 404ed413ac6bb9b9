// The ids of FUSE requests are NodeIds (core/tree/tree.h): the immutable tree's are computed, so
// nothing is kept for them and FORGET is nothing; those of live files (live_files.h) are counted;
// those below .devices (device_files.h) hold the serial number of a load.

#include "fs/operations.h"

#include <cstring>

#include "core/base/text.h"
#include "core/format/tensor_attributes.h"
#include "fs/directory_operations.h"
#include "fs/file_operations.h"
#include "fs/nodes.h"
#include "fs/reply.h"

namespace safetensorfs {
namespace {

constexpr std::size_t kMaxName = 255;

void Initialize(void* user_data, fuse_conn_info* connection) {
  const unsigned capable = connection->capable;
  connection->want |= capable & (FUSE_CAP_SPLICE_WRITE | FUSE_CAP_READDIRPLUS);
  // Without it a lookup that waits for devices keeps all others out of `.devices`, but for names
  // that the kernel has. libfuse before 3.17 does not pass it on.
  connection->want |= capable & FUSE_CAP_PARALLEL_DIROPS;
  // AUTO would fill the kernel's caches with a million entries for a plain `ls`. MOVE would steal
  // pages from the source's page cache. Nothing cached here ever becomes stale.
  connection->want &= ~static_cast<unsigned>(FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_SPLICE_MOVE |
                                             FUSE_CAP_AUTO_INVAL_DATA);
  connection->max_read = kMaxRead;
  Filesystem& filesystem = *static_cast<Filesystem*>(user_data);
  try {
    filesystem.on_init();
  } catch (const std::exception& error) {
    filesystem.log.Line(error.what());
  }
}

void Drop(Filesystem& filesystem, NodeId node, std::uint64_t count) {
  if (LiveFiles::IsLive(node)) filesystem.live.Forget(node, count);
}

// False, and not replied, where there is no such name.
bool ReplyEntry(Filesystem& filesystem, fuse_req_t request, NodeId parent, std::string_view name) {
  const auto entry = LookUp(filesystem, parent, name);
  if (!entry) return false;
  // A reply that fails was interrupted: the kernel will not forget what it never got.
  if (fuse_reply_entry(request, &*entry) != 0) Drop(filesystem, entry->ino, 1);
  return true;
}

// The name may be that of a device which has not been looked for.
void LookupDevice(Filesystem& filesystem, fuse_req_t request, NodeId parent, std::string name) {
  filesystem.devices->LookForMore(Devices::Search::kOnce, [=, name = std::move(name)] {
    Guard(request, [&](Filesystem& self) {
      if (!ReplyEntry(self, request, parent, name)) fuse_reply_err(request, ENOENT);
    });
  });
}

void Lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  Guard(request, [=](Filesystem& filesystem) {
    if (std::strlen(name) > kMaxName) {
      fuse_reply_err(request, ENAMETOOLONG);
      return;
    }
    std::call_once(filesystem.first_lookup, [&filesystem] {
      if (filesystem.on_first_lookup) filesystem.on_first_lookup();
    });
    filesystem.lookups.Remember(fuse_req_ctx(request)->pid, parent);
    if (ReplyEntry(filesystem, request, parent, name)) return;
    if (DeviceFiles::ListsDevices(parent)) return LookupDevice(filesystem, request, parent, name);
    if (name[0] == '.' || DeviceFiles::Owns(parent)) {
      fuse_reply_err(request, ENOENT);  // it may come to be
      return;
    }
    fuse_entry_param nothing = {};
    nothing.entry_timeout = kForever;
    fuse_reply_entry(request, &nothing);
  });
}

void Forget(fuse_req_t request, fuse_ino_t node, std::uint64_t count) {
  Drop(FilesystemOf(request), node, count);
  fuse_reply_none(request);
}

void ForgetMulti(fuse_req_t request, std::size_t count, fuse_forget_data* forgets) {
  for (std::size_t i = 0; i < count; ++i) {
    Drop(FilesystemOf(request), forgets[i].ino, forgets[i].nlookup);
  }
  fuse_reply_none(request);
}

void GetAttributes(fuse_req_t request, fuse_ino_t node, fuse_file_info*) {
  Guard(request, [=](Filesystem& filesystem) {
    const struct stat status = StatNode(filesystem, node, fuse_req_ctx(request)->uid);
    fuse_reply_attr(request, &status, StatTimeout(node));
  });
}

void SetAttributes(fuse_req_t request, fuse_ino_t node, struct stat*, int which, fuse_file_info*) {
  Guard(request, [=](Filesystem& filesystem) {
    // `> .control` truncates what has no length of its own.
    const bool is_control = LiveFiles::IsLive(node) && filesystem.live.FileOf(node).control;
    if (!is_control || (which & ~FUSE_SET_ATTR_SIZE) != 0) {
      fuse_reply_err(request, EROFS);
      return;
    }
    const struct stat status = StatNode(filesystem, node, fuse_req_ctx(request)->uid);
    fuse_reply_attr(request, &status, kForever);
  });
}

void Unlink(fuse_req_t request, fuse_ino_t parent, const char* name) {
  Guard(request, [=](Filesystem& filesystem) {
    const std::string subject = "rm " + Quoted(name) + ": ";
    const uid_t uid = fuse_req_ctx(request)->uid;
    const pid_t pid = fuse_req_ctx(request)->pid;
    filesystem.device_files.Unlink(parent, name, pid, [=](const Outcome& outcome) {
      Guard(request, [&](Filesystem& self) {
        // `rm` has no descriptor to read the reason from.
        if (outcome.error != 0) {
          self.control->Note(DeviceFiles::PlaceOf(parent), uid, subject + outcome.line);
        }
        fuse_reply_err(request, outcome.error);
      });
    });
  });
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

void GetExtendedAttribute(fuse_req_t request, fuse_ino_t node, const char* name, std::size_t size) {
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
  SetFileOperations(operations);
  SetDirectoryOperations(operations);
  operations.statfs = StatFilesystem;
  operations.getxattr = GetExtendedAttribute;
  operations.listxattr = ListExtendedAttributes;
  operations.ioctl = RefuseIoctl;
  operations.setattr = SetAttributes;
  operations.mknod = RefuseToWrite;
  operations.mkdir = RefuseToWrite;
  operations.unlink = Unlink;
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

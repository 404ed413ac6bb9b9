#include "fs/file_operations.h"

#include <fcntl.h>

#include "core/base/process.h"
#include "fs/control_file.h"
#include "fs/reply.h"

namespace safetensorfs {
namespace {

int FdOf(const fuse_file_info& info) {
  return static_cast<int>(static_cast<std::int64_t>(info.fh));
}

std::shared_ptr<ControlHandle> ControlOf(const Filesystem& filesystem, NodeId node,
                                         const fuse_file_info& info) {
  return LiveFiles::IsLive(node) ? filesystem.control_handles.Find(info.fh) : nullptr;
}

bool Writes(const fuse_file_info& info) {
  return (info.flags & O_ACCMODE) != O_RDONLY || (info.flags & O_TRUNC) != 0;
}

void OpenLive(Filesystem& filesystem, fuse_req_t request, NodeId node, fuse_file_info& info) {
  const fuse_ctx& caller = *fuse_req_ctx(request);
  const LiveFiles::File& file = filesystem.live.FileOf(node);
  info.fh = 0;
  if (!Writes(info)) {
    filesystem.live.Text(node, caller.uid);
    info.keep_cache = 1;
    info.noflush = 1;
  } else if (file.control) {
    info.fh = filesystem.control_handles.Add(
        std::make_shared<ControlHandle>(*filesystem.control, *file.control, caller.uid));
    info.direct_io = 1;  // a write is a script, not pages
  } else {
    fuse_reply_err(request, EROFS);
    return;
  }
  // A reply that fails was interrupted: no release will come.
  if (fuse_reply_open(request, &info) != 0) filesystem.control_handles.Remove(info.fh);
}

void OpenDeviceFile(Filesystem& filesystem, fuse_req_t request, NodeId node, fuse_file_info& info) {
  filesystem.device_files.CheckFile(node);
  info.noflush = 1;
  // Read-ahead of a slow device would take the slots that tensors are read ahead with, and a read
  // of what was lost must fail.
  info.direct_io = 1;
  if (!DeviceFiles::IsLeased(node)) {
    fuse_reply_open(request, &info);
    return;
  }
  info.fh = filesystem.device_files.BeginLease(node, ProcessOf(fuse_req_ctx(request)->pid));
  if (fuse_reply_open(request, &info) != 0) filesystem.device_files.EndLease(node, info.fh);
}

void Open(fuse_req_t request, fuse_ino_t node, fuse_file_info* info) {
  Guard(request, [=](Filesystem& filesystem) {
    if (LiveFiles::IsLive(node)) return OpenLive(filesystem, request, node, *info);
    if (Writes(*info)) {
      fuse_reply_err(request, EROFS);
      return;
    }
    if (DeviceFiles::Owns(node)) return OpenDeviceFile(filesystem, request, node, *info);
    UniqueFd fd = filesystem.tree.Open(node);
    info->fh = static_cast<std::uint64_t>(static_cast<std::int64_t>(fd.get()));
    // What a node holds never changes: pages that the kernel has stay good, and nothing is flushed.
    info->keep_cache = 1;
    info->noflush = 1;
    if (fuse_reply_open(request, info) == 0) fd.release();
  });
}

void Release(fuse_req_t request, fuse_ino_t node, fuse_file_info* info) {
  Guard(request, [=](Filesystem& filesystem) {
    if (LiveFiles::IsLive(node)) {
      if (const auto handle = ControlOf(filesystem, node, *info)) handle->Release();
      filesystem.control_handles.Remove(info->fh);
    } else if (DeviceFiles::IsLeased(node)) {
      filesystem.device_files.EndLease(node, info->fh);
    } else if (!DeviceFiles::Owns(node)) {
      const UniqueFd fd(FdOf(*info));
    }
    fuse_reply_err(request, 0);
  });
}

void ReplyText(fuse_req_t request, std::string_view text) {
  fuse_reply_buf(request, text.data(), text.size());
}

void ReadLive(Filesystem& filesystem, fuse_req_t request, NodeId node, const fuse_file_info& info,
              std::uint64_t offset, std::size_t size) {
  if (const auto handle = ControlOf(filesystem, node, info)) {
    return ReplyText(request, handle->Read(offset, size));
  }
  const auto text = filesystem.live.Text(node, fuse_req_ctx(request)->uid);
  ReplyText(request, offset < text->size() ? std::string_view(*text).substr(offset, size)
                                           : std::string_view());
}

void ReadDeviceFile(Filesystem& filesystem, fuse_req_t request, NodeId node, std::uint64_t offset,
                    std::size_t size) {
  filesystem.device_files.Read(node, offset, size, [request](int error, const Pieces& pieces) {
    Guard(request, [&](Filesystem&) {
      if (error != 0) {
        fuse_reply_err(request, error);
      } else {
        ReplyPieces(request, pieces);
      }
    });
  });
}

void Read(fuse_req_t request, fuse_ino_t node, std::size_t size, off_t offset,
          fuse_file_info* info) {
  Guard(request, [=](Filesystem& filesystem) {
    const auto from = static_cast<std::uint64_t>(offset);
    if (LiveFiles::IsLive(node)) return ReadLive(filesystem, request, node, *info, from, size);
    if (DeviceFiles::Owns(node)) return ReadDeviceFile(filesystem, request, node, from, size);
    Pieces pieces;
    filesystem.tree.Read(node, FdOf(*info), from, size, pieces);
    ReplyPieces(request, pieces);
  });
}

void Write(fuse_req_t request, fuse_ino_t node, const char* text, std::size_t size, off_t offset,
           fuse_file_info* info) {
  Guard(request, [=](Filesystem& filesystem) {
    const auto handle = ControlOf(filesystem, node, *info);
    if (handle == nullptr) {
      fuse_reply_err(request, EROFS);
      return;
    }
    handle->Write(request, std::string(text, size), static_cast<std::uint64_t>(offset));
  });
}

void Flush(fuse_req_t request, fuse_ino_t node, fuse_file_info* info) {
  Guard(request, [=](Filesystem& filesystem) {
    const auto handle = ControlOf(filesystem, node, *info);
    if (handle == nullptr) {
      fuse_reply_err(request, 0);
    } else {
      handle->Flush(request);
    }
  });
}

}  // namespace

void SetFileOperations(fuse_lowlevel_ops& operations) {
  operations.open = Open;
  operations.release = Release;
  operations.read = Read;
  operations.write = Write;
  operations.flush = Flush;
}

}  // namespace safetensorfs

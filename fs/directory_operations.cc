#include "fs/directory_operations.h"

#include <vector>

#include "fs/nodes.h"
#include "fs/reply.h"

namespace safetensorfs {
namespace {

// Positions in a listing: ".", "..", live files from here, and then the directory's own.
constexpr std::uint64_t kFirstLive = 2;
constexpr std::uint64_t kFirstOwn = 16;

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
bool ListCommon(const Filesystem& filesystem, NodeId directory, std::uint64_t position,
                ListingBuffer& buffer) {
  if (position < 1 && !buffer.Add(".", BareEntry(directory, S_IFDIR), 1)) return false;
  if (position < 2 &&
      !buffer.Add("..", BareEntry(ParentOf(filesystem, directory), S_IFDIR), kFirstLive)) {
    return false;
  }
  std::uint64_t at = kFirstLive;
  for (const LiveFiles::File& file : filesystem.live.In(directory)) {
    ++at;
    if (position < at && !buffer.Add(file.name, BareEntry(file.ino, file.mode), at)) return false;
  }
  return true;
}

fuse_entry_param BareTypeOf(const Filesystem& filesystem, const Tree::Entry& entry) {
  if (DeviceFiles::Owns(entry.node)) {
    return BareEntry(entry.node, DeviceFiles::IsDirectory(entry.node) ? S_IFDIR : S_IFREG);
  }
  const struct stat type = filesystem.tree.Type(entry.node);
  return BareEntry(type.st_ino, type.st_mode);
}

void ListEntries(const Filesystem& filesystem, NodeId directory, std::uint64_t from,
                 const std::function<bool(const Tree::Entry&)>& visit) {
  if (DeviceFiles::Owns(directory)) {
    filesystem.device_files.List(directory, from, visit);
  } else {
    filesystem.tree.List(directory, from, visit);
  }
}

void List(fuse_req_t request, fuse_ino_t directory, std::size_t size, off_t offset, bool is_plus) {
  Guard(request, [=](Filesystem& filesystem) {
    const auto position = static_cast<std::uint64_t>(offset);
    ListingBuffer buffer(request, size, is_plus);
    // Full entries go to those who have shown that they ask for each: see LookupMemory.
    const bool is_full = is_plus && !DeviceFiles::Owns(directory) &&
                         filesystem.lookups.Remembers(fuse_req_ctx(request)->pid, directory);
    if (ListCommon(filesystem, directory, position, buffer)) {
      const std::uint64_t from = position > kFirstOwn ? position - kFirstOwn : 0;
      ListEntries(filesystem, directory, from, [&](const Tree::Entry& entry) {
        if (filesystem.live.Has(directory, entry.name)) return true;
        return buffer.Add(
            entry.name, is_full ? TreeEntry(filesystem, entry.node) : BareTypeOf(filesystem, entry),
            kFirstOwn + entry.next);
      });
    }
    buffer.Reply();
  });
}

void OpenDirectory(fuse_req_t request, fuse_ino_t directory, fuse_file_info* info) {
  Guard(request, [=](Filesystem& filesystem) {
    if (!DeviceFiles::ListsDevices(directory)) {
      fuse_reply_open(request, info);
      return;
    }
    // libfuse's `info` ends with this call.
    filesystem.devices->LookForMore(Devices::Search::kOnce,
                                    [request, copy = *info] { fuse_reply_open(request, &copy); });
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

}  // namespace

void SetDirectoryOperations(fuse_lowlevel_ops& operations) {
  operations.opendir = OpenDirectory;
  operations.readdir = ReadDirectory;
  operations.readdirplus = ReadDirectoryPlus;
}

}  // namespace safetensorfs

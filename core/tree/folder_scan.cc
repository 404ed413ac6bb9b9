#include "core/tree/folder_scan.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "core/base/error.h"
#include "core/base/text.h"

namespace safetensorfs {
namespace {

struct CloseDirectory {
  void operator()(DIR* directory) const { closedir(directory); }
};

void AddItem(SourceTree& tree, std::uint32_t folder, const char* name) {
  const std::string path = tree.folders[folder].path + "/" + name;
  struct stat status;
  if (lstat(path.c_str(), &status) != 0) {
    tree.warnings.push_back(Printable(path) + ": left out: " + ErrnoText(errno));
    return;
  }
  if (S_ISLNK(status.st_mode)) {
    if (stat(path.c_str(), &status) != 0) {
      tree.warnings.push_back(Printable(path) +
                              ": left out: the link leads nowhere: " + ErrnoText(errno));
      return;
    }
    if (S_ISDIR(status.st_mode)) return;
  }
  if (S_ISDIR(status.st_mode)) {
    const auto number = static_cast<std::uint32_t>(tree.folders.size());
    tree.folders.push_back({folder, path, status, {}, 0});
    tree.folders[folder].items.push_back({name, SourceTree::Kind::kFolder, number});
    ++tree.folders[folder].subfolders;
  } else if (S_ISREG(status.st_mode)) {
    const auto number = static_cast<std::uint32_t>(tree.files.size());
    tree.files.push_back({path, status, nullptr});
    tree.folders[folder].items.push_back({name, SourceTree::Kind::kFile, number});
  }
}

}  // namespace

void ScanFolder(SourceTree& tree) {
  // Folders that are found are appended, so this visits them all.
  for (std::uint32_t folder = 0; folder < tree.folders.size(); ++folder) {
    const std::string path = tree.folders[folder].path;
    const std::unique_ptr<DIR, CloseDirectory> directory(opendir(path.c_str()));
    if (!directory) {
      if (folder == 0) ThrowErrno(path, "cannot read the folder");
      tree.warnings.push_back(Printable(path) + ": cannot read the folder: " + ErrnoText(errno));
      continue;
    }
    while (const dirent* entry = readdir(directory.get())) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") AddItem(tree, folder, entry->d_name);
    }
    SortItems(tree.folders[folder]);
  }
}

void SortItems(SourceTree::Folder& folder) {
  std::sort(folder.items.begin(), folder.items.end(),
            [](const SourceTree::Item& a, const SourceTree::Item& b) { return a.name < b.name; });
}

}  // namespace safetensorfs

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

class Scanner {
 public:
  Scanner(SourceTree& tree, Problems& problems) : tree_(tree), problems_(problems) {}

  void Scan() {
    // Folders that are found are appended, so this visits them all.
    for (std::uint32_t folder = 0; folder < tree_.folders.size(); ++folder) {
      ReadFolder(folder);
      SortItems(tree_.folders[folder]);
    }
  }

 private:
  void ReadFolder(std::uint32_t folder) {
    const std::string path = tree_.folders[folder].path;
    const std::unique_ptr<DIR, CloseDirectory> directory(opendir(path.c_str()));
    if (!directory && folder == 0) ThrowErrno(path, "cannot read the folder");
    errno = directory ? 0 : errno;
    while (directory) {
      const dirent* entry = readdir(directory.get());
      if (entry == nullptr) break;
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") AddItem(folder, entry->d_name);
      errno = 0;
    }
    if (errno != 0) LeaveOut(path, "cannot read the folder: " + ErrnoText(errno), true);
  }

  void AddItem(std::uint32_t folder, const char* name) {
    const std::string path = tree_.folders[folder].path + "/" + name;
    const bool is_wanted = IsFileName(name) || IsIndexName(name);
    struct stat status;
    if (lstat(path.c_str(), &status) != 0) {
      return LeaveOut(path, "cannot open: " + ErrnoText(errno), is_wanted);
    }
    const bool is_link = S_ISLNK(status.st_mode);
    if (is_link && stat(path.c_str(), &status) != 0) {
      return LeaveOut(path, "the link leads nowhere: " + ErrnoText(errno), is_wanted);
    }
    if (S_ISREG(status.st_mode)) {
      const auto number = static_cast<std::uint32_t>(tree_.files.size());
      tree_.files.push_back({path, status, nullptr});
      tree_.folders[folder].items.push_back({name, SourceTree::Kind::kFile, number});
    } else if (S_ISDIR(status.st_mode) && !is_link) {
      const auto number = static_cast<std::uint32_t>(tree_.folders.size());
      tree_.folders.push_back({folder, path, status, {}, 0});
      tree_.folders[folder].items.push_back({name, SourceTree::Kind::kFolder, number});
      ++tree_.folders[folder].subfolders;
    } else if (is_wanted) {
      LeaveOut(path, "is not a regular file", true);
    }
  }

  void LeaveOut(const std::string& path, const std::string& reason, bool is_problem) {
    const std::string text = Printable(path) + ": left out: " + reason;
    tree_.warnings.push_back(text);
    if (is_problem) problems_.push_back({Fault::kUnreadable, text});
  }

  SourceTree& tree_;
  Problems& problems_;
};

}  // namespace

void ScanFolder(SourceTree& tree, Problems& problems) { Scanner(tree, problems).Scan(); }

void SortItems(SourceTree::Folder& folder) {
  std::sort(folder.items.begin(), folder.items.end(),
            [](const SourceTree::Item& a, const SourceTree::Item& b) { return a.name < b.name; });
}

}  // namespace safetensorfs

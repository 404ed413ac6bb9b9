#include "core/tree/source_tree.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "core/base/error.h"
#include "core/base/parallel.h"
#include "core/base/text.h"
#include "core/format/shard_index.h"
#include "core/tree/folder_scan.h"

namespace safetensorfs {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFolderSuffix = ".tensors";
constexpr std::size_t kMaxName = 255;

// huggingface_hub's cache: models--ORG--NAME/{blobs,refs,snapshots}.
std::string ResolveCacheFolder(const std::string& path) {
  const fs::path folder = fs::path(path).lexically_normal();
  const fs::path name = folder.has_filename() ? folder.filename() : folder.parent_path().filename();
  if (!name.string().starts_with("models--") || !fs::is_directory(folder / "snapshots"))
    return path;
  std::ifstream ref(folder / "refs" / "main");
  std::string revision;
  if (!(ref >> revision) || revision.find('/') != revision.npos) {
    throw Error(ENOENT, Printable(path) + ": a cache folder without refs/main; name a snapshot");
  }
  const fs::path snapshot = folder / "snapshots" / revision;
  if (!fs::is_directory(snapshot)) {
    throw Error(ENOENT, Printable(path) + ": refs/main names the snapshot " + Quoted(revision) +
                            ", which is not in snapshots/");
  }
  return snapshot.string();
}

// A file of a folder that may be a checkpoint, and what came of it.
struct Candidate {
  std::uint32_t folder;
  std::string name;
  std::string path;
  std::unique_ptr<Checkpoint> checkpoint;
  Problems problems;

  bool is_index() const { return IsIndexName(name); }
  std::string stem() const {
    return name.substr(0, name.size() - (is_index() ? kIndexSuffix : kFileSuffix).size());
  }
};

using FileId = std::pair<dev_t, ino_t>;

FileId IdOf(const struct stat& status) { return {status.st_dev, status.st_ino}; }

class FolderOpener {
 public:
  FolderOpener(SourceTree& tree, Problems& problems) : tree_(tree), problems_(problems) {}

  void Open() {
    ScanFolder(tree_, problems_);
    std::vector<Candidate> indexes = Collect(/*want_indexes=*/true);
    OpenAll(indexes);
    Keep(indexes);
    // The shards of a valid index are shown through it, those of an invalid one by themselves.
    std::vector<Candidate> files = Collect(/*want_indexes=*/false);
    OpenAll(files);
    Keep(files);
    AddFolders();
    LinkSources();
  }

 private:
  std::vector<Candidate> Collect(bool want_indexes) {
    std::vector<Candidate> candidates;
    for (std::uint32_t folder = 0; folder < tree_.folders.size(); ++folder) {
      for (const SourceTree::Item& item : tree_.folders[folder].items) {
        if (item.kind != SourceTree::Kind::kFile) continue;
        const bool wanted = want_indexes ? IsIndexName(item.name) : IsFileName(item.name);
        const SourceTree::File& file = tree_.files[item.number];
        if (!wanted || sources_.contains(IdOf(file.status))) continue;
        candidates.push_back({folder, item.name, file.path, nullptr, {}});
      }
    }
    return candidates;
  }

  static void OpenAll(std::vector<Candidate>& candidates) {
    ParallelFor(candidates.size(), [&](std::size_t i) {
      candidates[i].checkpoint = OpenCheckpoint(candidates[i].path, candidates[i].problems);
    });
  }

  void Keep(std::vector<Candidate>& candidates) {
    for (Candidate& candidate : candidates) {
      for (const Problem& problem : candidate.problems) {
        // A shard is looked at again by itself where its index is wrong.
        if (!reported_.insert(problem.text).second) continue;
        tree_.warnings.push_back(problem.text);
        problems_.push_back(problem);
      }
      if (!candidate.checkpoint) continue;
      for (const SourceFile& source : candidate.checkpoint->sources) {
        sources_.emplace(IdOf(source.status()), &source);
      }
      kept_.push_back(std::move(candidate));
    }
  }

  void AddFolders() {
    std::map<std::pair<std::uint32_t, std::string>, int> stems;
    for (const Candidate& candidate : kept_) ++stems[{candidate.folder, candidate.stem()}];
    std::map<std::uint32_t, std::set<std::string>> taken;
    for (std::uint32_t i = 0; i < tree_.folders.size(); ++i) {
      for (const SourceTree::Item& item : tree_.folders[i].items) taken[i].insert(item.name);
    }
    for (Candidate& candidate : kept_) {
      std::set<std::string>& names = taken[candidate.folder];
      std::string name = candidate.stem() + std::string(kFolderSuffix);
      const bool is_shared = stems[{candidate.folder, candidate.stem()}] > 1;
      if (is_shared || names.contains(name) || name.front() == '.') {
        name = candidate.name + std::string(kFolderSuffix);
      }
      if (name.size() > kMaxName || !names.insert(name).second) {
        tree_.warnings.push_back(Printable(candidate.path) + ": not shown, no name is free for " +
                                 Quoted(name));
        continue;
      }
      const auto number = static_cast<std::uint32_t>(tree_.checkpoints.size());
      tree_.checkpoints.push_back({candidate.folder, std::move(candidate.checkpoint)});
      SourceTree::Folder& folder = tree_.folders[candidate.folder];
      folder.items.push_back({std::move(name), SourceTree::Kind::kCheckpoint, number});
      ++folder.subfolders;
    }
    for (SourceTree::Folder& folder : tree_.folders) SortItems(folder);
  }

  void LinkSources() {
    std::map<FileId, const SourceFile*> shown;
    for (const auto& [parent, checkpoint] : tree_.checkpoints) {
      for (const SourceFile& source : checkpoint->sources)
        shown.emplace(IdOf(source.status()), &source);
    }
    for (SourceTree::File& file : tree_.files) {
      const auto at = shown.find(IdOf(file.status));
      if (at != shown.end()) file.source = at->second;
    }
  }

  SourceTree& tree_;
  Problems& problems_;
  std::map<FileId, const SourceFile*> sources_;
  std::set<std::string> reported_;
  std::vector<Candidate> kept_;
};

}  // namespace

std::vector<std::string> AllWarnings(const SourceTree& tree) {
  std::vector<std::string> warnings = tree.warnings;
  for (const SourceTree::OpenCheckpoint& open : tree.checkpoints) {
    const auto& own = open.checkpoint->warnings;
    warnings.insert(warnings.end(), own.begin(), own.end());
  }
  return warnings;
}

std::unique_ptr<SourceTree> OpenSource(const std::string& path, Problems& problems) {
  auto tree = std::make_unique<SourceTree>();
  try {
    tree->path = fs::absolute(path).lexically_normal().string();
    struct stat status;
    if (stat(path.c_str(), &status) != 0) ThrowErrno(path, "cannot open");
    if (S_ISDIR(status.st_mode)) {
      // Absolute: files of a folder are opened when they are read, from whatever folder that is.
      const std::string folder = ResolveCacheFolder(tree->path);
      if (stat(folder.c_str(), &status) != 0) ThrowErrno(folder, "cannot open");
      tree->folders.push_back({0, folder, status, {}, 0});
      FolderOpener(*tree, problems).Open();
      return tree;
    }
    auto checkpoint = OpenCheckpoint(path, problems);
    if (!checkpoint) return nullptr;
    tree->checkpoints.push_back({0, std::move(checkpoint)});
    return tree;
  } catch (const Error& error) {
    problems.push_back({Fault::kUnreadable, error.what()});
    return nullptr;
  } catch (const fs::filesystem_error& error) {
    problems.push_back({Fault::kUnreadable, Printable(path) + ": " + error.code().message()});
    return nullptr;
  }
}

}  // namespace safetensorfs

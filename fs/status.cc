#include "fs/status.h"

#include <nlohmann/json.hpp>

#include "core/base/text.h"

namespace safetensorfs {
namespace {

using nlohmann::ordered_json;

const char* NameOf(SourceState state) {
  switch (state) {
    case SourceState::kUnchanged:
      return "unchanged";
    case SourceState::kReplaced:
      return "replaced";
    case SourceState::kChanged:
      return "changed";
  }
  return "";
}

void AddSources(const Checkpoint& checkpoint, ordered_json& sources, ordered_json& warnings) {
  for (const std::string& warning : checkpoint.warnings) warnings.push_back(warning);
  for (const SourceFile& source : checkpoint.sources) {
    const SourceState state = source.State();
    sources.push_back({{"path", source.path()}, {"state", NameOf(state)}});
    if (state == SourceState::kReplaced) {
      warnings.push_back(Printable(source.path()) +
                         ": replaced since it was mounted; what was mounted is still served");
    } else if (state == SourceState::kChanged) {
      warnings.push_back(Printable(source.path()) +
                         ": changed in place since it was mounted; it cannot be opened any more");
    }
  }
}

// Of one checkpoint, or of all.
void AddDevices(const Devices& devices, std::optional<std::uint32_t> place, ordered_json& infos,
                ordered_json& loads, ordered_json& warnings) {
  for (const auto& host : devices.all()) {
    infos.push_back(ordered_json::parse(host->InfoText(place)));
    if (const auto failure = host->LastFailure()) {
      warnings.push_back(host->name() + ": " + *failure);
    }
    for (const std::shared_ptr<Job>& job : host->Jobs()) {
      if (place.value_or(job->place) != job->place) continue;
      loads.push_back({{"id", job->id},
                       {"device", host->name()},
                       {"pid", job->pid},
                       {"verb", job->verb},
                       {"nbytes_done", job->progress.done.load()},
                       {"nbytes_total", job->progress.total.load()}});
    }
  }
}

std::string Dump(const SourceTree& tree, const Devices& devices, std::optional<std::uint32_t> place,
                 ordered_json sources, ordered_json warnings) {
  ordered_json infos = ordered_json::array();
  ordered_json loads = ordered_json::array();
  AddDevices(devices, place, infos, loads, warnings);
  const ordered_json status = {{"version", 1},
                               {"source", tree.path},
                               {"sources", std::move(sources)},
                               {"devices", std::move(infos)},
                               {"loads", std::move(loads)},
                               {"warnings", std::move(warnings)}};
  // A path may hold bytes that are not UTF-8.
  return status.dump(2, ' ', false, ordered_json::error_handler_t::replace) + '\n';
}

}  // namespace

std::string CheckpointStatus(const SourceTree& tree, std::uint32_t place, const Devices& devices) {
  ordered_json sources = ordered_json::array();
  ordered_json warnings = ordered_json::array();
  AddSources(*tree.checkpoints[place].checkpoint, sources, warnings);
  return Dump(tree, devices, place, std::move(sources), std::move(warnings));
}

std::string FolderStatus(const SourceTree& tree, const Devices& devices) {
  ordered_json sources = ordered_json::array();
  ordered_json warnings = tree.warnings;
  for (const SourceTree::OpenCheckpoint& open : tree.checkpoints) {
    AddSources(*open.checkpoint, sources, warnings);
  }
  return Dump(tree, devices, std::nullopt, std::move(sources), std::move(warnings));
}

}  // namespace safetensorfs

#include "core/device/loaded_tensors.h"

#include <algorithm>
#include <iterator>

namespace safetensorfs {

LoadedTensors::LoadedTensors(std::vector<std::uint32_t> tensor_counts, NbytesOf nbytes_of)
    : tensor_counts_(std::move(tensor_counts)),
      nbytes_of_(std::move(nbytes_of)),
      serials_(tensor_counts_.size()),
      totals_(tensor_counts_.size()) {}

std::uint64_t LoadedTensors::losses() const {
  const std::lock_guard lock(mutex_);
  return losses_;
}

bool LoadedTensors::Add(std::uint32_t place, std::span<const std::uint32_t> tensors,
                        std::uint64_t losses) {
  const std::lock_guard lock(mutex_);
  if (losses != losses_) return false;
  if (tensors.empty()) return true;
  serials_[place].resize(tensor_counts_[place]);
  loads_.emplace(next_serial_, LoadRecord{place, {tensors.begin(), tensors.end()}, tensors.size()});
  for (const std::uint32_t tensor : tensors) {
    serials_[place][tensor] = next_serial_++;
    ++totals_[place].tensors;
    totals_[place].nbytes += nbytes_of_(place, tensor);
  }
  ++changes_;
  return true;
}

std::vector<Holder> LoadedTensors::Remove(
    std::uint32_t place, std::span<const std::uint32_t> tensors,
    const std::function<std::uint64_t(std::uint32_t)>& unit_of,
    std::chrono::milliseconds patience) {
  std::vector<std::uint64_t> units;
  for (const std::uint32_t tensor : tensors) {
    const std::uint64_t unit = unit_of(tensor);
    if (units.empty() || units.back() != unit) units.push_back(unit);
  }
  std::sort(units.begin(), units.end());

  std::unique_lock lock(mutex_);
  const bool is_free = released_.wait_for(lock, patience, [&] {
    return std::ranges::none_of(leased_units_, [&](const auto& unit) {
      return std::binary_search(units.begin(), units.end(), unit.first);
    });
  });
  if (!is_free) {
    std::vector<Holder> holders;
    for (const auto& [id, lease] : leases_) {
      if (std::binary_search(units.begin(), units.end(), lease.unit))
        holders.push_back(lease.holder);
    }
    return holders;
  }
  for (const std::uint32_t tensor : tensors) {
    std::uint64_t& serial = serials_[place][tensor];
    if (serial == 0) continue;  // lost while this waited
    const auto load = std::prev(loads_.upper_bound(serial));
    if (--load->second.left == 0) loads_.erase(load);
    serial = 0;
    --totals_[place].tensors;
    totals_[place].nbytes -= nbytes_of_(place, tensor);
  }
  ++changes_;
  return {};
}

LoadedTensors::Amount LoadedTensors::Clear() {
  const std::lock_guard lock(mutex_);
  ++losses_;
  ++changes_;
  Amount lost;
  for (const Amount& total : totals_) {
    lost.tensors += total.tensors;
    lost.nbytes += total.nbytes;
  }
  for (auto& serials : serials_) std::ranges::fill(serials, 0);
  std::ranges::fill(totals_, Amount());
  loads_.clear();
  leases_.clear();
  leased_units_.clear();
  released_.notify_all();
  return lost;
}

bool LoadedTensors::Has(std::uint32_t place, std::uint32_t tensor) const {
  return Find(place, tensor).has_value();
}

std::uint64_t LoadedTensors::SerialLocked(std::uint32_t place, std::uint32_t tensor) const {
  const auto& serials = serials_[place];
  return tensor < serials.size() ? serials[tensor] : 0;
}

std::vector<std::uint32_t> LoadedTensors::Missing(std::uint32_t place,
                                                  std::span<const std::uint32_t> tensors) const {
  std::vector<std::uint32_t> missing;
  missing.reserve(tensors.size());
  const std::lock_guard lock(mutex_);
  std::ranges::copy_if(tensors, std::back_inserter(missing),
                       [&](std::uint32_t tensor) { return SerialLocked(place, tensor) == 0; });
  return missing;
}

std::optional<LoadedTensors::Instance> LoadedTensors::Find(std::uint32_t place,
                                                           std::uint32_t tensor) const {
  const std::lock_guard lock(mutex_);
  const std::uint64_t serial = SerialLocked(place, tensor);
  return serial == 0 ? std::nullopt : std::optional(Instance{serial, place, tensor});
}

std::optional<LoadedTensors::Instance> LoadedTensors::FindSerialLocked(std::uint64_t serial) const {
  const auto after = loads_.upper_bound(serial);
  if (after == loads_.begin()) return std::nullopt;
  const auto& [first, load] = *std::prev(after);
  if (serial - first >= load.tensors.size()) return std::nullopt;
  const std::uint32_t tensor = load.tensors[serial - first];
  if (serials_[load.place][tensor] != serial) return std::nullopt;
  return Instance{serial, load.place, tensor};
}

std::optional<LoadedTensors::Instance> LoadedTensors::FindSerial(std::uint64_t serial) const {
  const std::lock_guard lock(mutex_);
  return FindSerialLocked(serial);
}

std::optional<LoadedTensors::Instance> LoadedTensors::Next(std::uint32_t place,
                                                           std::uint32_t from) const {
  const std::lock_guard lock(mutex_);
  const auto& serials = serials_[place];
  for (std::size_t tensor = from; tensor < serials.size(); ++tensor) {
    if (serials[tensor] != 0) {
      return Instance{serials[tensor], place, static_cast<std::uint32_t>(tensor)};
    }
  }
  return std::nullopt;
}

LoadedTensors::Amount LoadedTensors::Total(std::uint32_t place) const {
  const std::lock_guard lock(mutex_);
  return totals_[place];
}

std::uint64_t LoadedTensors::changes() const {
  const std::lock_guard lock(mutex_);
  return changes_;
}

std::optional<std::uint64_t> LoadedTensors::Lease(std::uint64_t serial, std::uint64_t unit,
                                                  Holder holder) {
  const std::lock_guard lock(mutex_);
  if (!FindSerialLocked(serial)) return std::nullopt;
  const std::uint64_t lease = next_lease_++;
  leases_.emplace(lease, LeaseInfo{unit, std::move(holder)});
  ++leased_units_[unit];
  return lease;
}

void LoadedTensors::Release(std::uint64_t lease) {
  const std::lock_guard lock(mutex_);
  const auto at = leases_.find(lease);
  if (at == leases_.end()) return;
  const auto unit = leased_units_.find(at->second.unit);
  if (--unit->second == 0) leased_units_.erase(unit);
  leases_.erase(at);
  released_.notify_all();
}

std::uint64_t LoadedTensors::LeaseCount() const {
  const std::lock_guard lock(mutex_);
  return leases_.size();
}

}  // namespace safetensorfs

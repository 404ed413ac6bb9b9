#include "core/control/device_texts.h"

#include <charconv>

#include "core/base/text.h"

namespace safetensorfs {
namespace {

// "\"name\":...,\"dtype\":...,\"shape\":...,\"nbytes\":..."
void AppendTensor(const TensorIndex& index, std::uint32_t tensor, std::string& out) {
  out += "\"name\":";
  AppendJsonString(index.name(tensor), out);
  out += ",\"dtype\":\"" + std::string(index.dtype(tensor).name) + "\",\"shape\":";
  AppendShape(index.shape(tensor), out);
  out += ",\"nbytes\":" + std::to_string(index[tensor].nbytes);
}

void AppendText(const char* field, std::string_view value, std::string& out) {
  out += std::string(",\"") + field + "\":";
  AppendJsonString(value, out);
}

void AppendNumber(const char* field, std::uint64_t value, std::string& out) {
  out += std::string(",\"") + field + "\":" + std::to_string(value);
}

}  // namespace

std::string HandleText(const Device& device, const Checkpoint& checkpoint,
                       const LoadedTensors::Instance& instance) {
  std::string text = "{\"version\":1,\"device\":\"" + device.name() + "\",";
  AppendTensor(checkpoint.index, instance.tensor, text);
  AppendNumber("generation", instance.serial, text);
  return text + "," + device.HandleFields(checkpoint, instance.tensor) + "}\n";
}

std::string SlabText(const Device& device, const Checkpoint& checkpoint, std::uint64_t number,
                     const Slab& slab) {
  std::string text = "{\"version\":1,\"device\":\"" + device.name() + "\"";
  AppendNumber("generation", number, text);
  text += "," + slab.fields + ",\"tensors\":[";
  for (const Slab::Tensor& entry : slab.tensors) {
    text += &entry == &slab.tensors.front() ? "{" : ",{";
    AppendTensor(checkpoint.index, entry.tensor, text);
    AppendNumber("offset", entry.offset, text);
    text += '}';
  }
  return text + "]}\n";
}

std::optional<std::uint64_t> ParseSlabName(std::string_view name) {
  std::uint64_t number = 0;
  const char* end = name.data() + name.size();
  const auto [at, error] = std::from_chars(name.data(), end, number);
  if (error != std::errc() || at != end || number >= kLeaseUnits) return std::nullopt;
  return std::to_string(number) == name ? std::optional(number) : std::nullopt;
}

std::string InfoText(const Device& device, const LoadedTensors::Amount& loaded,
                     std::uint64_t leases, const std::optional<std::string>& last_failure) {
  const DeviceInfo info = device.Info();
  std::string text = "{\"name\":\"" + device.name() + "\"";
  if (!info.uuid.empty()) AppendText("uuid", info.uuid, text);
  if (!info.product.empty()) AppendText("product", info.product, text);
  AppendNumber("total_nbytes", info.total_nbytes, text);
  if (info.free_nbytes) {
    AppendNumber("free_nbytes", *info.free_nbytes, text);
  } else {
    text += ",\"free_nbytes\":null";
  }
  AppendNumber("loaded_tensors", loaded.tensors, text);
  AppendNumber("loaded_nbytes", loaded.nbytes, text);
  AppendNumber("held_nbytes", info.held_nbytes, text);
  AppendNumber("leases", leases, text);
  if (last_failure) AppendText("last_failure", *last_failure, text);
  return text + "}";
}

}  // namespace safetensorfs

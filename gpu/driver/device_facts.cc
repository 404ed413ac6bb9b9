#include "gpu/driver/device_facts.h"

#include <array>
#include <cstdio>

#include "gpu/driver/driver.h"

namespace safetensorfs {
namespace {

// 8-4-4-4-12 hex digits.
std::string UuidText(const CUuuid& uuid) {
  std::string text;
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    std::array<char, 3> digits;
    std::snprintf(digits.data(), digits.size(), "%02x",
                  static_cast<unsigned>(static_cast<unsigned char>(uuid.bytes[i])));
    text += digits.data();
  }
  return text;
}

// CUDA's rules for legacy IPC: not on Tegra, and not where one process has the device to itself.
std::string ReasonAgainstExport(const Driver& driver, CUdevice device) {
  int is_integrated = 0;
  driver.device_get_attribute(&is_integrated, CU_DEVICE_ATTRIBUTE_INTEGRATED, device);
  if (is_integrated != 0) return "CUDA shares no memory of integrated GPUs between processes";
  int mode = 0;
  driver.device_get_attribute(&mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, device);
  if (mode == CU_COMPUTEMODE_EXCLUSIVE_PROCESS) {
    return "the GPU is in exclusive-process mode, which lets no second process use it "
           "(nvidia-smi -c DEFAULT changes that)";
  }
  return {};
}

}  // namespace

DeviceFacts FactsOf(const Driver& driver, int ordinal) {
  CUdevice device;
  driver.device_get(&device, ordinal);
  DeviceFacts facts;
  std::array<char, 256> text = {};
  driver.device_get_name(text.data(), text.size(), device);
  facts.product = text.data();
  CUuuid uuid;
  driver.device_get_uuid(&uuid, device);
  facts.uuid = (facts.product.find("MIG") != std::string::npos ? "MIG-" : "GPU-") + UuidText(uuid);
  driver.device_get_pci_bus_id(text.data(), text.size(), device);
  facts.pci_bus = text.data();
  std::size_t total = 0;
  driver.device_total_mem(&total, device);
  facts.total_nbytes = total;
  facts.no_export = ReasonAgainstExport(driver, device);
  return facts;
}

}  // namespace safetensorfs

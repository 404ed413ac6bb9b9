#include <array>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <vector>

#include "core/base/error.h"
#include "gpu/driver/device_memory.h"
#include "tests/gpu_check/json_line.h"
#include "tests/gpu_check/measurements.h"
#include "tests/gpu_check/stopwatch.h"

namespace safetensorfs {
namespace {

std::string ToHex(const CUipcMemHandle& handle) {
  std::string text;
  for (const char byte : handle.reserved) {
    std::array<char, 3> digits;
    std::snprintf(digits.data(), digits.size(), "%02x",
                  static_cast<unsigned>(static_cast<unsigned char>(byte)));
    text += digits.data();
  }
  return text;
}

CUipcMemHandle FromHex(const std::string& text) {
  CUipcMemHandle handle;
  if (text.size() != 2 * sizeof handle) throw Error(EINVAL, "not a handle: " + text);
  for (std::size_t i = 0; i < sizeof handle; ++i) {
    handle.reserved[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return handle;
}

}  // namespace

void HoldSlabs(int ordinal, std::size_t nbytes, std::size_t count) {
  const Gpu gpu(ordinal);
  std::vector<double> allocate;
  std::vector<double> export_;
  std::vector<double> free;
  std::vector<DeviceMemory> slabs;
  std::string handles;
  slabs.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const Stopwatch allocating;
    slabs.emplace_back(gpu.driver, nbytes);
    allocate.push_back(allocating.seconds());
    const Stopwatch exporting;
    CUipcMemHandle handle;
    gpu.driver.ipc_get_mem_handle(&handle, slabs.back().address());
    export_.push_back(exporting.seconds());
    handles += (i > 0 ? ",\"" : "\"") + ToHex(handle) + "\"";
  }
  JsonLine()
      .AddSeconds("allocate_seconds", allocate)
      .AddSeconds("export_seconds", export_)
      .AddJson("handles", "[" + handles + "]")
      .Print();
  std::string line;
  std::getline(std::cin, line);
  while (!slabs.empty()) {
    const Stopwatch freeing;
    slabs.pop_back();
    free.push_back(freeing.seconds());
  }
  JsonLine().AddSeconds("free_seconds", free).Print();
}

void OpenSlabs(int ordinal) {
  const Gpu gpu(ordinal);
  std::vector<double> open;
  std::vector<double> close;
  std::vector<CUdeviceptr> slabs;
  for (std::string line; std::getline(std::cin, line);) {
    const CUipcMemHandle handle = FromHex(line);
    const Stopwatch opening;
    CUdeviceptr address = 0;
    gpu.driver.ipc_open_mem_handle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    open.push_back(opening.seconds());
    slabs.push_back(address);
  }
  for (const CUdeviceptr address : slabs) {
    const Stopwatch closing;
    gpu.driver.ipc_close_mem_handle(address);
    close.push_back(closing.seconds());
  }
  JsonLine().AddSeconds("open_seconds", open).AddSeconds("close_seconds", close).Print();
}

}  // namespace safetensorfs

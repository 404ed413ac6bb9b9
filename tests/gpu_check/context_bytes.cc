#include <iostream>
#include <sstream>
#include <vector>

#include "gpu/driver/device_memory.h"
#include "tests/gpu_check/json_line.h"
#include "tests/gpu_check/measurements.h"
#include "tests/gpu_check/stopwatch.h"

namespace safetensorfs {
namespace {

void AddMemory(const Gpu& gpu, JsonLine& line) {
  std::size_t free = 0;
  std::size_t total = 0;
  gpu.driver.mem_get_info(&free, &total);
  line.Add("free_nbytes", free).Add("total_nbytes", total);
}

}  // namespace

void HoldContext(int ordinal) {
  const Stopwatch watch;
  const Gpu gpu(ordinal);
  JsonLine ready;
  ready.AddSeconds("start_seconds", watch.seconds());
  AddMemory(gpu, ready);
  ready.Print();

  std::vector<DeviceMemory> taken;
  for (std::string text; std::getline(std::cin, text);) {
    std::istringstream words(text);
    std::string verb;
    std::uint64_t nbytes = 0;
    words >> verb >> nbytes;
    if (verb == "take") taken.emplace_back(gpu.driver, nbytes);
    if (verb == "give") taken.clear();
    JsonLine line;
    AddMemory(gpu, line);
    line.Print();
  }
}

}  // namespace safetensorfs

#include "driver.h"

#include <pthread.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

namespace simulated_cuda {
namespace {

constexpr int64_t kLookEveryNs = 5'000'000;

int64_t Nanoseconds(const timespec& time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// One word of CUDA_VISIBLE_DEVICES.
std::optional<size_t> FindDevice(const std::string& word,
                                 const std::vector<DeviceSettings>& devices) {
  if (word.starts_with("GPU-") || word.starts_with("MIG-")) {
    std::optional<std::vector<uint8_t>> prefix = UuidNibbles(word.substr(4));
    if (!prefix || prefix->size() > 32) return std::nullopt;
    for (size_t device = 0; device < devices.size(); ++device) {
      const Uuid& uuid = devices[device].uuid;
      bool matches = true;
      for (size_t i = 0; i < prefix->size(); ++i) {
        int nibble = i % 2 == 0 ? uuid[i / 2] >> 4 : uuid[i / 2] & 15;
        matches = matches && (*prefix)[i] == nibble;
      }
      if (matches) return device;
    }
    return std::nullopt;
  }
  size_t ordinal = 0;
  const char* end = word.data() + word.size();
  auto [stop, error] = std::from_chars(word.data(), end, ordinal);
  if (error != std::errc() || stop != end || ordinal >= devices.size()) return std::nullopt;
  return ordinal;
}

}  // namespace

Driver& Driver::Get() {
  static Driver* driver = new Driver;
  return *driver;
}

Driver::Driver() {
  const char* folder = std::getenv("SIMULATED_CUDA");
  if (folder != nullptr) folder_ = folder;
  if (has_simulation()) {
    state_ = std::make_unique<StateFile>(folder_);
    RefreshConfiguration();
  } else {
    all_configurations_.push_back(std::make_unique<Configuration>("devices=0"));
    configuration_ = all_configurations_.back().get();
  }
  initial_ = configuration_;
}

const DeviceSettings& Driver::settings(size_t device) const {
  const Configuration* current = configuration_;
  // The number of devices is cuInit's; a test that lowers it later changes nothing here.
  if (device < current->devices.size()) return current->devices[device];
  return initial_->devices.at(device);
}

void Driver::RefreshConfiguration() {
  std::lock_guard guard(configuration_mutex_);
  // Before the file: what is announced during the reading is another reading's.
  uint64_t announced = state().configuration();
  std::string path = folder_ + "/config";
  struct stat status = {};
  FileVersion version;
  if (stat(path.c_str(), &status) == 0) {
    version = {.inode = status.st_ino,
               .modified_ns = Nanoseconds(status.st_mtim),
               .changed_ns = Nanoseconds(status.st_ctim),
               .bytes = status.st_size};
  }
  bool same = version == version_ && announced == announced_;
  if (configuration_ != nullptr && same) return;
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  all_configurations_.push_back(std::make_unique<Configuration>(text));
  version_ = version;
  announced_ = announced;
  configuration_ = all_configurations_.back().get();
}

void Driver::RefreshConfigurationNowAndThen() {
  if (announced_ != state().configuration()) return RefreshConfiguration();
  timespec time = {};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  int64_t now = Nanoseconds(time);
  int64_t before = looked_at_ns_.load(std::memory_order_relaxed);
  if (now - before < kLookEveryNs) return;
  if (looked_at_ns_.compare_exchange_strong(before, now)) RefreshConfiguration();
}

std::vector<size_t> Driver::VisibleDevices() const {
  const std::vector<DeviceSettings>& devices = configuration().devices;
  std::vector<size_t> visible;
  const char* words = std::getenv("CUDA_VISIBLE_DEVICES");
  if (words == nullptr) {
    for (size_t i = 0; i < devices.size(); ++i) visible.push_back(i);
    return visible;
  }
  std::istringstream stream(words);
  for (std::string word; std::getline(stream, word, ',');) {
    std::optional<size_t> device = FindDevice(word, devices);
    if (!device) break;  // what follows the first wrong word is invisible
    if (std::find(visible.begin(), visible.end(), *device) != visible.end()) return {};
    visible.push_back(*device);
  }
  return visible;
}

CUresult Driver::Initialize() {
  std::lock_guard guard(initialize_mutex_);
  if (initialized_) return CUDA_SUCCESS;
  std::vector<size_t> visible = VisibleDevices();
  if (visible.empty()) return CUDA_ERROR_NO_DEVICE;
  for (size_t device : visible) contexts_.push_back(std::make_unique<Context>(*this, device));
  identity_ = OwnIdentity();
  state().Enter(identity_);
  state().Add(Counter::kInits);
  pthread_atfork(nullptr, nullptr, [] { Get().forked_ = true; });
  initialized_ = true;
  return CUDA_SUCCESS;
}

void Driver::Poison() {
  if (poisoned_.exchange(true)) return;
  state().own().poisoned = 1;
  state().Add(Counter::kPoisonedProcesses);
}

Context*& Driver::CurrentContext() {
  thread_local Context* current = nullptr;
  return current;
}

std::chrono::steady_clock::time_point Driver::NextCopyTime() {
  std::optional<uint64_t> delay = configuration().copy_delay_us;
  if (delay == 0) return {};
  // Knuth's multiplicative hash: delays that look random and are the same in every run.
  uint64_t hash = (copies_issued_.fetch_add(1) * 2654435761u) & 0xffffffff;
  uint64_t microseconds = delay.value_or(hash * 200 >> 32);
  return std::chrono::steady_clock::now() + std::chrono::microseconds(microseconds);
}

}  // namespace simulated_cuda

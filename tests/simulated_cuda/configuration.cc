#include "configuration.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <sstream>

#include "stop.h"
#include "symbol.h"

namespace simulated_cuda {
namespace {

size_t SymbolIndex(const std::string& name) {
  auto found = std::find(kSymbols.begin(), kSymbols.end(), name);
  if (found == kSymbols.end()) Stop("config: \"" + name + "\" is no function of this library");
  return static_cast<size_t>(found - kSymbols.begin());
}

uint64_t Number(const std::string& key, const std::string& value) {
  uint64_t number = 0;
  const char* end = value.data() + value.size();
  auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || stop != end) {
    Stop("config: " + key + "=" + value + " is not a whole number");
  }
  return number;
}

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

// The lines, and which of them nobody has asked for.
class Lines {
 public:
  explicit Lines(const std::string& text) {
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) {
      if (line.empty() || line.front() == '#') continue;
      size_t equals = line.find('=');
      if (equals == std::string::npos) Stop("config: \"" + line + "\" is not key=value");
      values_[line.substr(0, equals)] = line.substr(equals + 1);
    }
  }

  std::optional<std::string> Text(const std::string& key) {
    asked_.insert(key);
    auto found = values_.find(key);
    return found == values_.end() ? std::nullopt : std::optional(found->second);
  }

  uint64_t Get(const std::string& key, uint64_t otherwise) {
    std::optional<std::string> value = Text(key);
    return value ? Number(key, *value) : otherwise;
  }

  int GetInt(const std::string& key, int otherwise) {
    return static_cast<int>(Get(key, static_cast<uint64_t>(otherwise)));
  }

  std::optional<std::string> Text(const std::string& key, size_t device) {
    std::optional<std::string> everywhere = Text(key);
    std::optional<std::string> here = Text(key + "." + std::to_string(device));
    return here ? here : everywhere;
  }

  uint64_t Get(const std::string& key, size_t device, uint64_t otherwise) {
    std::optional<std::string> value = Text(key, device);
    return value ? Number(key, *value) : otherwise;
  }

  std::map<int, int> Attributes() {
    const std::string prefix = "attribute.";
    std::map<int, int> attributes;
    for (const auto& [key, value] : values_) {
      if (!key.starts_with(prefix)) continue;
      asked_.insert(key);
      attributes[static_cast<int>(Number(key, key.substr(prefix.size())))] =
          static_cast<int>(Number(key, value));
    }
    return attributes;
  }

  void StopAtUnknownKeys() const {
    for (const auto& [key, value] : values_) {
      if (!asked_.contains(key)) Stop("config: unknown key \"" + key + "\"");
    }
  }

 private:
  std::map<std::string, std::string> values_;
  std::set<std::string> asked_;
};

Uuid DefaultUuid(size_t device) {
  return {0x51, 0x3a, 0x1a, 0x7e, 0xd0, 0x0d, 0x40, 0x00,
          0x80, 0x00, 0x00, 0x00, 0x00, 0x00, 0xc0, static_cast<uint8_t>(device)};
}

Uuid ParseUuid(const std::string& text) {
  std::optional<std::vector<uint8_t>> nibbles = UuidNibbles(text);
  Uuid uuid;
  if (!nibbles || nibbles->size() != 2 * uuid.size()) {
    Stop("config: \"" + text + "\" is not a UUID");
  }
  for (size_t i = 0; i < uuid.size(); ++i) {
    uuid[i] = static_cast<uint8_t>((*nibbles)[2 * i] << 4 | (*nibbles)[2 * i + 1]);
  }
  return uuid;
}

DeviceSettings ReadDevice(Lines& lines, size_t device) {
  std::optional<std::string> uuid = lines.Text("uuid", device);
  std::string name = lines.Text("name", device).value_or("Simulated CUDA device");
  if (lines.Get("mig", device, 0) != 0) name += " MIG 1g.10gb";
  return {
      .memory = lines.Get("memory", device, uint64_t{8} << 30),
      .reserved = lines.Get("reserved", device, 0),
      .context_bytes = lines.Get("context_bytes", device, uint64_t{300} << 20),
      .oom_at = lines.Get("oom_at", device, 0),
      .uuid = uuid ? ParseUuid(*uuid) : DefaultUuid(device),
      .name = name,
      .compute_mode = static_cast<int>(lines.Get("compute_mode", device, 0)),
      .integrated = static_cast<int>(lines.Get("integrated", device, 0)),
  };
}

std::unique_ptr<Fault> MakeFault(Fault::Kind kind, std::optional<std::string> symbol) {
  auto fault = std::make_unique<Fault>();
  fault->kind = kind;
  if (symbol) fault->symbol = SymbolIndex(*symbol);
  return fault;
}

std::vector<std::unique_ptr<Fault>> ReadFaults(Lines& lines) {
  std::vector<std::unique_ptr<Fault>> faults;
  auto add = [&](Fault::Kind kind, const std::string& word, int code) {
    std::optional<std::string> symbol = lines.Text(word + "_call");
    std::optional<std::string> at = lines.Text(word + "_at");
    if (!symbol && !at) return;
    faults.push_back(MakeFault(kind, symbol));
    faults.back()->code = code;
    if (at) faults.back()->first = Number(word + "_at", *at);
  };
  add(Fault::Kind::kHang, "hang", 0);
  add(Fault::Kind::kCrash, "crash", lines.GetInt("crash_signal", 9));
  add(Fault::Kind::kSticky, "sticky", 0);
  for (const std::string& rule : Split(lines.Text("fail_call").value_or(""), ',')) {
    std::vector<std::string> parts = Split(rule, ':');
    if (parts.size() < 2 || parts.size() > 3) {
      Stop("config: fail_call=" + rule + " is not SYMBOL:CODE[:N]");
    }
    faults.push_back(MakeFault(Fault::Kind::kFail, parts[0]));
    faults.back()->code = static_cast<int>(Number("fail_call", parts[1]));
    if (parts.size() == 3) {
      faults.back()->first = Number("fail_call", parts[2]);
      faults.back()->once = true;
    }
  }
  return faults;
}

}  // namespace

Configuration::Configuration(const std::string& text) {
  Lines lines(text);
  uint64_t count = lines.Get("devices", 2);
  if (count > kMaxDevices) Stop("config: more than 16 devices");
  for (size_t i = 0; i < count; ++i) devices.push_back(ReadDevice(lines, i));
  attributes = lines.Attributes();
  driver_version = lines.GetInt("driver_version", 12040);
  reuse = lines.Get("reuse", 0) != 0;
  poison = lines.Get("poison", 0) != 0;
  ipc = lines.Get("ipc", 1) != 0;
  register_host = lines.Get("register", 1) != 0;
  host_alloc = lines.Get("host_alloc", 1) != 0;
  std::optional<std::string> delay = lines.Text("copy_delay_us");
  if (delay) copy_delay_us = Number("copy_delay_us", *delay);
  copy_bytes_per_second = lines.Get("copy_bytes_per_second", 0);
  stall = lines.Get("stall", 0) != 0;
  init_error = lines.GetInt("init_error", 0);
  init_hang = lines.Get("init_hang", 0) != 0;
  faults = ReadFaults(lines);
  lines.StopAtUnknownKeys();
}

std::optional<std::vector<uint8_t>> UuidNibbles(const std::string& text) {
  std::vector<uint8_t> nibbles;
  for (char character : text) {
    if (character == '-') continue;
    uint8_t nibble = 0;
    if (std::from_chars(&character, &character + 1, nibble, 16).ec != std::errc()) {
      return std::nullopt;
    }
    nibbles.push_back(nibble);
  }
  return nibbles;
}

}  // namespace simulated_cuda

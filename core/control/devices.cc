#include "core/control/devices.h"

#include <cerrno>

#include "core/base/error.h"
#include "core/base/text.h"

namespace safetensorfs {

DeviceHost& Devices::Find(std::string_view word) const {
  std::string names;
  for (const auto& host : hosts_) {
    if (host->IsCalled(word)) return *host;
    names += (names.empty() ? "" : ", ") + host->name();
  }
  throw Error(ENODEV, "no device " + Quoted(word) + "; there is " + names);
}

}  // namespace safetensorfs

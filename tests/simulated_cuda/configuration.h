// What a test says about the simulated driver and the faults that it shall have.
//
// The environment variable SIMULATED_CUDA names a folder; without it the driver finds no device.
// The folder holds `config`, lines of `key=value`, `#` comments, and the file that state_file.h
// describes. A process reads `config` again when it has changed (a test writes another file and
// renames it): before every call, except that copies, events and cuCtxSetCurrent look every 5 ms
// only, or at once where `state` has been told, as simulation.py does. An unknown key, symbol or
// value aborts the process, with the line.
//
// Devices. A key marked * applies to all devices and, with `.N` added, to device N alone. N is the
// number before CUDA_VISIBLE_DEVICES (ordinals, GPU-uuid or MIG-uuid prefixes) is looked at.
//
//   devices=2               how many; 16 at most. With 0, cuInit returns 100
//   driver_version=12040    what cuDriverGetVersion says
//   memory=8589934592 *     bytes; nothing is reserved
//   reserved=0 *            bytes of it that are never free, as if other programs had them
//   context_bytes=314572800 *   what a primary context costs while it is retained
//   uuid *                  32 hexadecimal digits, hyphens allowed (for one device only, so uuid.N)
//   name *                  default "Simulated CUDA device"
//   mig=0 *                 1: the name contains MIG
//   compute_mode=0 *        2 prohibited: no context (46); 3 exclusive: one process's context (46)
//   integrated=0 *          the device attribute
//   attribute.CODE=VALUE    any device attribute, on all devices
//   reuse=0                 1: freed memory is given out again to who asks for as much. A GPU's
//   memory
//                           costs no page faults, which otherwise are most of what a copy takes
//                           here
//   poison=0                1: new device memory is filled with 0xA5 instead of zeros
//
// What the driver does not support:
//
//   ipc=1                   0: cuIpcGetMemHandle and cuIpcOpenMemHandle_v2 return 801
//   register=1              0: cuMemHostRegister_v2 returns 801
//   host_alloc=1            0: cuMemHostAlloc returns 2
//
// Copies that are issued on a stream read and write memory when they execute:
//
//   copy_delay_us           how long after its issue a copy may start; default random, up to 200
//   copy_bytes_per_second=0 each direction of a device, however many streams; 0: as memcpy
//   stall=0                 1: no copy executes for as long as this is set
//
// Faults. SYMBOL is the exported name (cuMemAlloc_v2). Calls are counted in each process, from
// when it has read this `config`: they start again at 0 when a test has written another.
//
//   oom_at=0 *              cuMemAlloc_v2 returns 2 where a device's allocations, in all
//                           processes, would exceed so many bytes; 0: no limit
//   init_error=0            what cuInit returns
//   init_hang=0             1: cuInit never returns
//   sticky_call=SYMBOL      the sticky_at-th call (default 1) of SYMBOL, or of anything where only
//   sticky_at=N             sticky_at is given, returns 700, and so does every later call of
//                           that process that a context takes part in
//   hang_call=SYMBOL        the hang_at-th call (default 1) and later ones never return
//   hang_at=N
//   crash_call=SYMBOL       the crash_at-th call (default 1) sends crash_signal (default 9) to
//   crash_at=N              the calling process
//   crash_signal=N
//   fail_call=SYMBOL:CODE[:N],...   the N-th call, or every call, returns CODE and does nothing
#ifndef SAFETENSORFS_TESTS_SIMULATED_CUDA_CONFIGURATION_H_
#define SAFETENSORFS_TESTS_SIMULATED_CUDA_CONFIGURATION_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace simulated_cuda {

inline constexpr size_t kMaxDevices = 16;

using Uuid = std::array<uint8_t, 16>;

struct DeviceSettings {
  uint64_t memory;
  uint64_t reserved;
  uint64_t context_bytes;
  uint64_t oom_at;  // 0: no limit
  Uuid uuid;
  std::string name;
  int compute_mode;
  int integrated;
};

struct Fault {
  enum class Kind { kFail, kSticky, kHang, kCrash };

  Kind kind;
  std::optional<size_t> symbol;  // index into kSymbols; nothing: any call
  uint64_t first = 1;            // the call that it begins with, from 1
  bool once = false;             // and ends with
  int code = 0;                  // what kFail returns, the signal that kCrash sends
  mutable std::atomic<uint64_t> calls = 0;
};

// One reading of `config`. Immutable but for the faults' counts; thread-safe.
struct Configuration {
  // Aborts where the text is not what the comment above says.
  explicit Configuration(const std::string& text);

  std::vector<DeviceSettings> devices;
  std::map<int, int> attributes;
  int driver_version;
  bool reuse;
  bool poison;
  bool ipc;
  bool register_host;
  bool host_alloc;
  std::optional<uint64_t> copy_delay_us;
  uint64_t copy_bytes_per_second;
  bool stall;
  int init_error;
  bool init_hang;
  std::vector<std::unique_ptr<Fault>> faults;
};

// Hexadecimal digits, hyphens skipped; fewer than 32 give fewer nibbles. Nothing for other text.
std::optional<std::vector<uint8_t>> UuidNibbles(const std::string& text);

}  // namespace simulated_cuda

#endif  // SAFETENSORFS_TESTS_SIMULATED_CUDA_CONFIGURATION_H_

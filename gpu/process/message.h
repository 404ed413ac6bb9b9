#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/driver/device_facts.h"
#include "gpu/process/transfer.h"

namespace safetensorfs {

/// What the daemon and a worker tell each other, in frames (see Channel). Both are one program of
/// one build, so the layout is that of memory. The daemon asks:
///
///   kSources  Sources    files that the next job reads, with descriptors; may come in parts
///   kLoad     LoadJob    -> kProgress ..., kDone with the slabs
///   kVerify   VerifyJob  -> kProgress ..., kDone
///   kFree     FreeJob    -> kDone; does not wait for other jobs
///   kCancel   id         ends that job soon: its kDone says EINTR, unless it was done
///   kRead     ReadBack   -> kBytes; does not wait for jobs
///
/// The worker also says kHello, once and first, kMemory now and then, and kLost as its last word.
enum class MessageKind : std::uint32_t {
  kSources = 1,
  kLoad,
  kVerify,
  kFree,
  kCancel,
  kRead,
  kHello,
  kProgress,
  kDone,
  kBytes,
  kMemory,
  kLost,
};

struct Sources {
  std::vector<std::string> paths;  // for messages; one for each descriptor
};

/// Allocates slabs and fills them, all or nothing. Transfers are ordered by slab and offset.
struct LoadJob {
  std::uint64_t id = 0;
  bool is_one_of_several = false;  // see LoadHints
  std::vector<SlabSize> slabs;
  std::vector<Transfer> transfers;
};

/// Compares what slabs hold with the sources. Transfers are ordered by slab and offset.
struct VerifyJob {
  std::uint64_t id = 0;
  std::vector<Transfer> transfers;
};

struct FreeJob {
  std::uint64_t id = 0;
  std::vector<std::uint64_t> slabs;
};

struct ReadBack {
  std::uint64_t id = 0;
  std::uint64_t slab = 0;
  std::uint64_t offset = 0;  // bytes from the start of the slab
  std::uint64_t nbytes = 0;
};

/// A worker's end of preparations: what handles say of it, or why it cannot work.
struct Hello {
  std::int32_t error = 0;  // a positive errno
  std::string reason;
  std::int64_t pid = 0;
  std::uint64_t pid_start_ticks = 0;
  std::uint64_t pid_namespace = 0;  // inode number
  std::uint64_t euid = 0;
};

struct JobProgress {
  std::uint64_t id = 0;
  std::uint64_t nbytes_done = 0;
};

/// A slab's IPC handle, CU_IPC_HANDLE_SIZE bytes.
using IpcHandle = std::array<unsigned char, 64>;

struct Done {
  std::uint64_t id = 0;
  std::int32_t error = 0;  // a positive errno
  std::string reason;
  /// A load's slabs in the order of the job, or none and why they cannot be exported.
  std::vector<IpcHandle> handles;
  std::string no_export;
  /// Where verifying found a difference: the tensor's number, and its first byte that differs.
  std::uint8_t is_difference = 0;  // a bool, which not every byte is
  std::uint32_t tensor = 0;
  std::uint64_t byte = 0;
};

/// What was read back follows in the frame.
struct Bytes {
  std::uint64_t id = 0;
  std::int32_t error = 0;  // a positive errno
};

struct MemoryNow {
  std::uint64_t free_nbytes = 0;
  std::uint64_t total_nbytes = 0;
};

struct Lost {
  std::string reason;
};

/// What a probe says: the devices there are, or why there are none.
struct Probed {
  std::string reason;  // why there are none
  std::vector<DeviceFacts> devices;
};

/// The bytes of a message, and a message from its bytes. Decode throws Error (EPROTO) where there
/// are too few, and leaves what follows in `rest`.
template <typename Message>
std::string Encode(const Message& message);
template <typename Message>
Message Decode(std::string_view bytes, std::string_view* rest = nullptr);

}  // namespace safetensorfs

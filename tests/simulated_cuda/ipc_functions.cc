// Exports: memory that other processes attach to.
//
// A handle says where the exporter's memfd is: /proc/PID/fd/N. Opening it is refused as CUDA
// refuses it, and where CUDA is vague:
//
//   1    flags other than CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS; not a handle; another effective
//        user or PID namespace; the exporter has ended or has freed the memory
//   201  the exporting process itself; another device's context than the exporter's, by UUID;
//        memory that is open in another context of this process
//
// Opening again in the same context gives the same address and must be closed as often.
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>

#include "call.h"

namespace simulated_cuda {
namespace {

constexpr uint32_t kMagic = 0x53494d48;  // "SIMH"

struct Handle {
  uint32_t magic;
  uint32_t pid;
  uint64_t start_ticks;
  uint32_t pid_namespace;
  uint32_t effective_user;
  uint32_t descriptor;
  uint32_t unused;
  uint64_t allocation;
  uint64_t bytes;
  Uuid device;
};
static_assert(sizeof(Handle) == sizeof(CUipcMemHandle));

// -1 where it is not there any more.
int OpenMemory(const Handle& handle) {
  if (!IsAlive(handle.pid, handle.start_ticks)) return -1;
  std::string path =
      "/proc/" + std::to_string(handle.pid) + "/fd/" + std::to_string(handle.descriptor);
  std::array<char, 64> target = {};
  if (readlink(path.c_str(), target.data(), target.size() - 1) < 0) return -1;
  std::string expected = "/memfd:simulated_cuda_" + std::to_string(handle.allocation) + " ";
  if (!std::string_view(target.data()).starts_with(expected)) return -1;
  return open(path.c_str(), O_RDWR | O_CLOEXEC);
}

CUresult Open(Driver& driver, Context& context, const Handle& handle, CUdeviceptr* address) {
  const ProcessIdentity& own = driver.identity();
  if (handle.magic != kMagic || handle.effective_user != geteuid() ||
      handle.pid_namespace != static_cast<uint32_t>(own.pid_namespace)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (handle.pid == own.pid && handle.start_ticks == own.start_ticks) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (handle.device != driver.settings(context.device()).uuid) return CUDA_ERROR_INVALID_CONTEXT;

  std::lock_guard guard(driver.imports_mutex);
  auto opened = driver.memory.Select([&](const DeviceBuffer& buffer) {
    return buffer.import != nullptr && buffer.exporter_pid == handle.pid &&
           buffer.exporter_start_ticks == handle.start_ticks &&
           buffer.exporter_id == handle.allocation;
  });
  if (!opened.empty()) {
    DeviceBuffer& buffer = *opened.front();
    if (buffer.context != &context) return CUDA_ERROR_INVALID_CONTEXT;
    ++buffer.opens;
    *address = buffer.address();
    return CUDA_SUCCESS;
  }
  int descriptor = OpenMemory(handle);
  if (descriptor < 0) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<DeviceBuffer> buffer = DeviceBuffer::Open(descriptor, handle.bytes);
  if (buffer == nullptr) return CUDA_ERROR_MAP_FAILED;
  ProcessIdentity exporter = {
      .pid = handle.pid, .start_ticks = handle.start_ticks, .pid_namespace = own.pid_namespace};
  buffer->context = &context;
  buffer->import = driver.state().Import(exporter, handle.allocation, handle.bytes);
  buffer->exporter_pid = handle.pid;
  buffer->exporter_start_ticks = handle.start_ticks;
  buffer->exporter_id = handle.allocation;
  buffer->opens = 1;
  *address = buffer->address();
  driver.memory.Insert(buffer->address(), handle.bytes, buffer);
  return CUDA_SUCCESS;
}

}  // namespace

SIMULATED_CUDA_EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  return InContext("cuIpcGetMemHandle", [&](Driver& driver, Context&) {
    if (!driver.configuration().ipc) return CUDA_ERROR_NOT_SUPPORTED;
    std::shared_ptr<DeviceBuffer> buffer = driver.memory.Find(address, 1);
    if (handle == nullptr || buffer == nullptr || buffer->address() != address ||
        buffer->import != nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    // After setuid the kernel keeps a process's own user out of its /proc/PID/fd, which the real
    // driver does not go through.
    prctl(PR_SET_DUMPABLE, 1);
    const ProcessIdentity& own = driver.identity();
    Handle contents = {.magic = kMagic,
                       .pid = static_cast<uint32_t>(own.pid),
                       .start_ticks = own.start_ticks,
                       .pid_namespace = static_cast<uint32_t>(own.pid_namespace),
                       .effective_user = geteuid(),
                       .descriptor = static_cast<uint32_t>(buffer->descriptor()),
                       .unused = 0,
                       .allocation = buffer->id(),
                       .bytes = buffer->bytes(),
                       .device = driver.settings(buffer->context->device()).uuid};
    std::memcpy(handle->reserved, &contents, sizeof(contents));
    driver.state().Add(Counter::kHandlesExported);
    return CUDA_SUCCESS;
  });
}

SIMULATED_CUDA_EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle,
                                                     unsigned int flags) {
  return InContext("cuIpcOpenMemHandle_v2", [&](Driver& driver, Context& context) {
    if (!driver.configuration().ipc) return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (address != nullptr && flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) {
      Handle contents;
      std::memcpy(&contents, handle.reserved, sizeof(contents));
      result = Open(driver, context, contents, address);
    }
    driver.state().Add(result == CUDA_SUCCESS ? Counter::kHandlesOpened : Counter::kHandlesRefused);
    return result;
  });
}

SIMULATED_CUDA_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  return InContext("cuIpcCloseMemHandle", [&](Driver& driver, Context&) {
    std::lock_guard guard(driver.imports_mutex);
    std::shared_ptr<DeviceBuffer> buffer = driver.memory.Find(address, 1);
    if (buffer == nullptr || buffer->address() != address || buffer->import == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (--buffer->opens > 0) return CUDA_SUCCESS;
    driver.memory.Remove(address, [](const DeviceBuffer&) { return true; });
    buffer->context->CloseImport(*buffer);
    return ResultOfWork(driver);
  });
}

}  // namespace simulated_cuda

"""The driver API for tests: in this process (Driver) or in one that can be killed (Remote)."""

import contextlib
import ctypes
import json
import os
import select
import subprocess
import sys

DEADLINE = 60  # seconds
POINTER = ctypes.c_uint64
NON_BLOCKING = 1


class CudaError(Exception):
    """A function's result that is not 0."""

    def __init__(self, code, function):
        super().__init__(f"{function} returned {code}")
        self.code = code


class IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_ubyte * 64)]


class Driver:
    """What libcuda.so.1 gives; addresses, streams and events are numbers, results are returned."""

    def __init__(self):
        self._library = ctypes.CDLL("libcuda.so.1")

    def call(self, function, *arguments):
        """Calls by the exported name; raises CudaError. Numbers are passed as 64 bits."""
        code = self.code(function, *arguments)
        if code != 0:
            raise CudaError(code, function)

    def code(self, function, *arguments):
        words = [POINTER(word) if isinstance(word, int) else word for word in arguments]
        return getattr(self._library, function)(*words)

    def _get(self, kind, function, *arguments):
        value = kind()
        self.call(function, ctypes.byref(value), *arguments)
        return value.value

    def init(self):
        self.call("cuInit", 0)

    def version(self):
        return self._get(ctypes.c_int, "cuDriverGetVersion")

    def device_count(self):
        return self._get(ctypes.c_int, "cuDeviceGetCount")

    def device_name(self, device):
        text = ctypes.create_string_buffer(100)
        self.call("cuDeviceGetName", text, 100, device)
        return text.value.decode()

    def device_uuid(self, device):
        uuid = (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGetUuid_v2", uuid, device)
        return bytes(uuid).hex()

    def device_bus(self, device):
        text = ctypes.create_string_buffer(32)
        self.call("cuDeviceGetPCIBusId", text, 32, device)
        return text.value.decode()

    def device_memory(self, device):
        return self._get(ctypes.c_size_t, "cuDeviceTotalMem_v2", device)

    def attribute(self, attribute, device):
        return self._get(ctypes.c_int, "cuDeviceGetAttribute", attribute, device)

    def error_name(self, code):
        name = ctypes.c_char_p()
        self.call("cuGetErrorName", code, ctypes.byref(name))
        return name.value.decode()

    def retain(self, device=0):
        return self._get(POINTER, "cuDevicePrimaryCtxRetain", device)

    def release(self, device=0):
        self.call("cuDevicePrimaryCtxRelease_v2", device)

    def start(self, device=0):
        """Initialises, retains a device's context and makes it current."""
        self.init()
        context = self.retain(device)
        self.set_current(context)
        return context

    def set_current(self, context):
        self.call("cuCtxSetCurrent", context)

    def current(self):
        return self._get(POINTER, "cuCtxGetCurrent")

    def synchronize(self):
        self.call("cuCtxSynchronize")

    def memory_info(self):
        """[free, total] bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return [free.value, total.value]

    def allocate(self, size):
        return self._get(POINTER, "cuMemAlloc_v2", size)

    def free(self, address):
        self.call("cuMemFree_v2", address)

    def allocate_host(self, size):
        return self._get(POINTER, "cuMemHostAlloc", size, 0)

    def free_host(self, address):
        self.call("cuMemFreeHost", address)

    def register(self, address, size):
        self.call("cuMemHostRegister_v2", address, size, 0)

    def unregister(self, address):
        self.call("cuMemHostUnregister", address)

    def write(self, address, data):
        """Stores bytes, given as text or bytes, where this process's memory is."""
        data = data.encode("latin-1") if isinstance(data, str) else data
        ctypes.memmove(address, data, len(data))

    def read(self, address, size):
        return ctypes.string_at(address, size).decode("latin-1")

    def host_memory(self, size):
        """Plain memory that stays for as long as this object."""
        buffer = ctypes.create_string_buffer(size)
        self.__dict__.setdefault("_buffers", []).append(buffer)
        return ctypes.addressof(buffer)

    def to_device(self, device, host, size):
        self.call("cuMemcpyHtoD_v2", device, host, size)

    def to_device_async(self, device, host, size, stream=0):
        self.call("cuMemcpyHtoDAsync_v2", device, host, size, stream)

    def to_host(self, host, device, size):
        self.call("cuMemcpyDtoH_v2", host, device, size)

    def to_host_async(self, host, device, size, stream=0):
        self.call("cuMemcpyDtoHAsync_v2", host, device, size, stream)

    def stream(self, flags=NON_BLOCKING):
        return self._get(POINTER, "cuStreamCreate", flags)

    def destroy_stream(self, stream):
        self.call("cuStreamDestroy_v2", stream)

    def wait_for_stream(self, stream):
        self.call("cuStreamSynchronize", stream)

    def event(self):
        return self._get(POINTER, "cuEventCreate", 0)

    def record(self, event, stream=0):
        self.call("cuEventRecord", event, stream)

    def query(self, event):
        return self.code("cuEventQuery", event)

    def export(self, address):
        """The handle as 128 hexadecimal digits."""
        handle = IpcHandle()
        self.call("cuIpcGetMemHandle", ctypes.byref(handle), address)
        return bytes(handle.reserved).hex()

    def open(self, handle, flags=1):
        value = IpcHandle.from_buffer_copy(bytes.fromhex(handle))
        return self._get(POINTER, "cuIpcOpenMemHandle_v2", value, flags)

    def close(self, address):
        self.call("cuIpcCloseMemHandle", address)

    def in_child(self, function, *arguments):
        """What a function returns in a forked child."""
        child = os.fork()
        if child == 0:
            os._exit(self.code(function, *arguments))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Remote:
    """A Driver in a process of its own; methods are Driver's."""

    def __init__(self, environment, user=None, before=()):
        command = [*before, sys.executable, __file__, "" if user is None else str(user)]
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.pid = self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def __getattr__(self, method):
        def run(*arguments):
            self.send(method, *arguments)
            return self.reply()

        return run

    def send(self, method, *arguments):
        """Begins a call; reply() waits for its end."""
        self.process.stdin.write(json.dumps([method, arguments]).encode() + b"\n")
        self.process.stdin.flush()

    def reply(self):
        ready, _, _ = select.select([self.process.stdout], [], [], DEADLINE)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            raise AssertionError(f"no answer: {self.end()}" if ready else "no answer")
        result, code, function = json.loads(line)
        if code:
            raise CudaError(code, function)
        return result

    def end(self):
        """Waits for the process's end; its status and what it wrote to stderr."""
        _, errors = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, errors.decode()

    def kill(self):
        """SIGKILL; nothing of the process is left when this returns."""
        self.process.kill()
        with contextlib.suppress(ValueError):
            self.process.communicate()


def serve(user):
    driver = Driver()
    if user:
        os.setgroups([])
        os.setgid(int(user))
        os.setuid(int(user))
    for line in sys.stdin:
        method, arguments = json.loads(line)
        try:
            answer = [getattr(driver, method)(*arguments), 0, ""]
        except CudaError as error:
            answer = [None, error.code, str(error).split()[0]]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])

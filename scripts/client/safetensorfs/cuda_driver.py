"""The CUDA driver, libcuda.so.1, as far as attaching to another process's memory needs it.

Functions are called by literal names: the header's macros do not exist here, and bare names such
as cuIpcOpenMemHandle are an older binary interface.
"""

import contextlib
import ctypes
import os
import threading
import uuid

NOT_INITIALIZED = 3
NO_DEVICE = 100
LAZY_ENABLE_PEER_ACCESS = 1  # the only flag that cuIpcOpenMemHandle takes


class IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_ubyte * 64)]


# CUdevice is an int, CUcontext a pointer, CUdeviceptr 64 bits.
_ARGUMENTS = {
    "cuInit": (ctypes.c_uint,),
    "cuGetErrorName": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
    "cuGetErrorString": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
    "cuDeviceGetCount": (ctypes.POINTER(ctypes.c_int),),
    "cuDeviceGet": (ctypes.POINTER(ctypes.c_int), ctypes.c_int),
    "cuDeviceGetUuid_v2": (ctypes.POINTER(ctypes.c_ubyte * 16), ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (ctypes.POINTER(ctypes.c_void_p), ctypes.c_int),
    "cuDevicePrimaryCtxRelease_v2": (ctypes.c_int,),
    "cuCtxGetCurrent": (ctypes.POINTER(ctypes.c_void_p),),
    "cuCtxSetCurrent": (ctypes.c_void_p,),
    "cuCtxSynchronize": (),
    "cuIpcOpenMemHandle_v2": (ctypes.POINTER(ctypes.c_uint64), IpcHandle, ctypes.c_uint),
    "cuIpcCloseMemHandle": (ctypes.c_uint64,),
}


class DriverError(Exception):
    """A function of the driver has failed, or there is no driver. str() is a sentence.

    code: the CUresult; None where there is no driver.
    """

    def __init__(self, sentence, code=None):
        super().__init__(sentence)
        self.code = code


class Driver:
    """The driver, initialised. Methods raise DriverError. Thread-safe.

    Devices are named by their ordinals in this process, which CUDA_VISIBLE_DEVICES and
    CUDA_DEVICE_ORDER decide, as in PyTorch and CuPy.
    """

    def __init__(self):
        try:
            library = ctypes.CDLL("libcuda.so.1")
            self._functions = {name: getattr(library, name) for name in _ARGUMENTS}
        except (OSError, AttributeError) as error:
            raise DriverError(
                f"this process finds no NVIDIA driver ({error}); a container needs to be started "
                "with GPUs, as by `docker run --gpus all`"
            ) from None
        for name, arguments in _ARGUMENTS.items():
            self._functions[name].argtypes = arguments
        try:
            self._call("cuInit", 0)
        except DriverError as error:
            if error.code != NO_DEVICE:
                raise
            self.uuids = ()
        else:
            # uuid.UUID by ordinal; the driver reads CUDA_VISIBLE_DEVICES once, in cuInit.
            count = self._get(ctypes.c_int, "cuDeviceGetCount")
            self.uuids = tuple(map(self._uuid, range(count)))

    def retain(self, ordinal):
        """The device's primary context, kept in being until release(). Takes 100 MB and more."""
        return self._get(ctypes.c_void_p, "cuDevicePrimaryCtxRetain", ordinal)

    def release(self, ordinal):
        self._call("cuDevicePrimaryCtxRelease_v2", ordinal)

    def open_memory(self, context, handle):
        """The address of another process's allocation. handle: 64 bytes."""
        with self._current(context):
            memory = IpcHandle.from_buffer_copy(handle)
            flags = LAZY_ENABLE_PEER_ACCESS
            return self._get(ctypes.c_uint64, "cuIpcOpenMemHandle_v2", memory, flags)

    def close_memory(self, context, address):
        """Waits for all work in the context, then closes what open_memory() has returned."""
        with self._current(context):
            self._call("cuCtxSynchronize")
            self._call("cuIpcCloseMemHandle", address)

    def _uuid(self, ordinal):
        device = self._get(ctypes.c_int, "cuDeviceGet", ordinal)
        octets = (ctypes.c_ubyte * 16)()
        self._call("cuDeviceGetUuid_v2", ctypes.byref(octets), device)
        return uuid.UUID(bytes=bytes(octets))

    @contextlib.contextmanager
    def _current(self, context):
        """A context is current for one thread, and belongs to whoever made it so."""
        before = self._get(ctypes.c_void_p, "cuCtxGetCurrent")
        self._call("cuCtxSetCurrent", context)
        try:
            yield
        finally:
            self._call("cuCtxSetCurrent", before)

    def _get(self, kind, name, *arguments):
        value = kind()
        self._call(name, ctypes.byref(value), *arguments)
        return value.value

    def _call(self, name, *arguments):
        code = self._functions[name](*arguments)
        if code != 0:
            raise self._error(name, code)

    def _error(self, name, code):
        words = []
        for function in "cuGetErrorName", "cuGetErrorString":
            text = ctypes.c_char_p()
            if self._functions[function](code, ctypes.byref(text)) == 0 and text.value:
                words.append(text.value.decode(errors="replace"))
        sentence = f"{name} failed with {': '.join(words) or 'an unknown error'} ({code})"
        if code == NOT_INITIALIZED:
            sentence += (
                "; if this process was forked from one that uses CUDA, start it anew instead: "
                'multiprocessing\'s "spawn"'
            )
        return DriverError(sentence, code)


_lock = threading.RLock()
_driver = None


def driver():
    """The driver of this process; initialises it at the first call, DriverError where it cannot."""
    global _driver
    with _lock:
        if _driver is None:
            _driver = Driver()
        return _driver


def _forget_in_child():
    """CUDA does not survive a fork; cuInit says so where it was in use."""
    global _lock, _driver
    _lock, _driver = threading.RLock(), None


os.register_at_fork(after_in_child=_forget_in_child)

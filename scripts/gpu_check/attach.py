"""Attaches to the slabs that are described on stdin, and prints what their tensors hold.

    attach.py WAY      driver, interface, storage (both PyTorch) or cupy

A line of JSON: {"digests": {tensor: SHA-256}, "open_seconds", "tensor_seconds", "count"}, or
{"skipped": reason} without the library. A program that attaches for real holds a lease meanwhile;
here the process that started this one sees to it.
"""

import ctypes
import hashlib
import json
import sys
import time

NUMPY_TYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "I16": "i2", "U16": "u2", "F16": "f2", "I32": "i4",
    "U32": "u4", "F32": "f4", "C64": "c8", "F64": "f8", "I64": "i8", "U64": "u8",
}  # fmt: skip
TORCH_TYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "F16": "float16",
    "I32": "int32", "U32": "uint32", "F32": "float32", "C64": "complex64", "F64": "float64",
    "I64": "int64", "U64": "uint64", "BF16": "bfloat16", "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F4": "float4_e2m1fn_x2",
}  # fmt: skip


class Skip(Exception):
    pass


class IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_ubyte * 64)]


class Driver:
    """The driver API by ctypes, with the primary context of the device of a UUID."""

    def __init__(self, uuid):
        self._library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self.ordinal = self._find(uuid)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.ordinal)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} returned {code}")

    def _find(self, uuid):
        wanted = uuid.partition("-")[2].replace("-", "")
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        for ordinal in range(count.value):
            found = (ctypes.c_ubyte * 16)()
            self.call("cuDeviceGetUuid_v2", found, ordinal)
            if bytes(found).hex() == wanted:
                return ordinal
        raise RuntimeError(f"no device {uuid}")

    def open(self, handle):
        address = ctypes.c_uint64()
        value = IpcHandle.from_buffer_copy(bytes.fromhex(handle))
        self.call("cuIpcOpenMemHandle_v2", ctypes.byref(address), value, 1)
        return address.value

    def read(self, address, nbytes):
        buffer = ctypes.create_string_buffer(max(nbytes, 1))
        if nbytes:
            self.call("cuMemcpyDtoH_v2", buffer, ctypes.c_uint64(address), ctypes.c_size_t(nbytes))
        return buffer.raw[:nbytes]


class DriverWay:
    def prepare(self):
        pass

    def use(self, driver):
        self._driver = driver

    def make(self, tensor, address):
        return address, tensor["nbytes"]

    def bytes(self, made):
        return self._driver.read(*made)


class TorchWay:
    """PyTorch by __cuda_array_interface__."""

    def prepare(self):
        try:
            import torch
        except ImportError as error:
            raise Skip(f"no module {error.name}") from None
        if not torch.cuda.is_available():
            raise Skip("PyTorch sees no GPU")
        self._torch = torch
        torch.cuda.init()

    def use(self, driver):
        self._device = f"cuda:{driver.ordinal}"
        self._torch.zeros(1, device=self._device)
        driver.call("cuCtxSynchronize")

    def make(self, tensor, address):
        torch, nbytes = self._torch, tensor["nbytes"]
        dtype, shape = getattr(torch, TORCH_TYPES.get(tensor["dtype"], ""), None), tensor["shape"]
        if dtype is None:  # packed bytes
            dtype, shape = torch.uint8, [nbytes]
        elif tensor["dtype"] == "F4":
            shape = [*shape[:-1], shape[-1] // 2]
        if nbytes == 0:
            return torch.empty(shape, dtype=dtype, device=self._device)
        made = self._attach(address, nbytes, dtype, shape)
        if made.data_ptr() != address:
            raise RuntimeError("PyTorch copied the tensor")
        return made

    def _attach(self, address, nbytes, dtype, shape):
        class Memory:
            __cuda_array_interface__ = {
                "version": 3,
                "shape": (nbytes,),
                "typestr": "|u1",
                "data": (address, False),
            }

        return self._torch.as_tensor(Memory(), device=self._device).view(dtype).view(shape)

    def bytes(self, made):
        flat = made.reshape(-1).view(self._torch.uint8)
        return flat.cpu().numpy().tobytes()


class StorageWay(TorchWay):
    """PyTorch by a storage on the address."""

    def _attach(self, address, nbytes, dtype, shape):
        torch = self._torch
        device = torch.device(self._device)
        storage = torch._C._construct_storage_from_data_pointer(address, device, nbytes)
        stride, step = [], 1
        for dimension in reversed(shape):
            stride.insert(0, step)
            step *= dimension
        facts = {
            "size": shape,
            "stride": stride,
            "dtype": dtype,
            "device": device,
            "storage_offset": 0,
        }
        return torch._C._construct_CUDA_Tensor_From_Storage_And_Metadata(facts, storage)


class CupyWay:
    def prepare(self):
        try:
            import cupy
        except ImportError as error:
            raise Skip(f"no module {error.name}") from None
        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except Exception as error:
            raise Skip(f"CuPy sees no GPU: {error}") from None
        if count == 0:
            raise Skip("CuPy sees no GPU")
        self._cupy = cupy

    def use(self, driver):
        self._ordinal = driver.ordinal
        self._cupy.cuda.Device(driver.ordinal).use()
        self._cupy.zeros(1)

    def make(self, tensor, address):
        cupy, nbytes = self._cupy, tensor["nbytes"]
        known = NUMPY_TYPES.get(tensor["dtype"])
        shape, dtype = (tensor["shape"], known) if known else ([nbytes], "u1")
        if nbytes == 0:
            return cupy.empty(shape, dtype)
        memory = cupy.cuda.UnownedMemory(address, nbytes, self, self._ordinal)
        return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))

    def bytes(self, made):
        return self._cupy.asnumpy(made).tobytes()


WAYS = {"driver": DriverWay, "interface": TorchWay, "storage": StorageWay, "cupy": CupyWay}


def attach(way, slabs):
    way.prepare()
    driver = Driver(slabs[0]["device_uuid"])
    way.use(driver)
    begin = time.perf_counter()
    addresses = [driver.open(slab["ipc_handle"]) for slab in slabs]
    opened = time.perf_counter()
    made = {
        tensor["name"]: way.make(tensor, address + tensor["offset"])
        for address, slab in zip(addresses, slabs, strict=True)
        for tensor in slab["tensors"]
    }
    end = time.perf_counter()
    digests = {name: hashlib.sha256(way.bytes(tensor)).hexdigest() for name, tensor in made.items()}
    made.clear()
    driver.call("cuCtxSynchronize")
    for address in addresses:
        driver.call("cuIpcCloseMemHandle", ctypes.c_uint64(address))
    return {
        "digests": digests,
        "open_seconds": opened - begin,
        "tensor_seconds": end - opened,
        "count": len(digests),
    }


def main():
    try:
        result = attach(WAYS[sys.argv[1]](), json.load(sys.stdin))
    except Skip as reason:
        result = {"skipped": str(reason)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()

"""PyTorch tensors on device memory that is opened already. Nothing here copies."""

import ctypes
import importlib
import weakref

from .arrays import TORCH_TYPES, impossible, packed_form, torch_type
from .cuda_arrays import CudaArray
from .cuda_driver import DriverError


class TorchCudaTensors:
    """Makes CUDA tensors, each with a storage of its own that keeps its slab open.

    Types are those of TorchTensors: F4 is float4_e2m1fn_x2 with the last dimension halved where
    that is even, other F4 and all F6 are packed uint8. make() as in cuda_arrays.
    """

    def __init__(self):
        try:
            torch = importlib.import_module("torch")
        except ImportError as error:
            raise ImportError(f'framework="pt" needs PyTorch: {error}') from error
        if torch.version.cuda is None:
            raise ImportError(
                f'framework="pt" on a cuda device needs a PyTorch built for CUDA, which '
                f'{torch.__version__} is not; framework="cp" and "cai" do without'
            )
        self._torch = torch
        self._make = self._on_storage if _storages_last(torch) else self._by_interface
        self._devices, self._types = {}, {}

    def make(self, tensor, address, ordinal, slab):
        """DriverError where PyTorch cannot use the device."""
        device = self._devices.get(ordinal) or self._open_device(ordinal)
        try:
            return self._make(tensor, address, device, slab)
        except (ValueError, OverflowError, RuntimeError, TypeError) as error:
            reason = str(error).partition("\n")[0]
            raise impossible(tensor, "PyTorch", reason) from None

    def _on_storage(self, tensor, address, device, slab):
        """PyTorch keeps a storage's Python object, and so this attribute, as long as the storage.

        Views share the storage, and so do tensors that only C++ holds, as in an autograd graph.
        """
        dtype, shape = self._form(tensor)
        core = self._torch._C
        storage = core._construct_storage_from_data_pointer(address, device, tensor["nbytes"])
        storage.safetensorfs_slab = slab
        metadata = {
            "size": shape, "stride": _strides(shape), "dtype": dtype, "device": device,
            "storage_offset": 0,
        }  # fmt: skip
        return core._construct_CUDA_Tensor_From_Storage_And_Metadata(metadata, storage), storage

    def _by_interface(self, tensor, address, device, slab):
        """For PyTorch without those functions. The storage keeps the object that it was made of."""
        dtype, shape = self._form(tensor)
        if slab is None:
            made = self._torch.empty(shape, dtype=dtype, device=device)
            return made, made
        octets = {**tensor, "dtype": "U8", "shape": (tensor["nbytes"],)}
        owner = CudaArray(octets, address, device.index, slab)
        made = self._torch.as_tensor(owner, device=device)
        return made.view(dtype).view(shape), owner

    def _open_device(self, ordinal):
        try:
            # A tensor made of a pointer initialises nothing, and operations on it would fail.
            self._torch.cuda.init()
        except RuntimeError as error:
            version, reason = self._torch.__version__, str(error).partition("\n")[0]
            raise DriverError(f"PyTorch {version} cannot use CUDA: {reason}") from None
        device = self._devices[ordinal] = self._torch.device("cuda", ordinal)
        return device

    def _form(self, tensor):
        """(dtype, shape as a list)."""
        name = tensor["dtype"]
        if name not in TORCH_TYPES:
            return packed_form(self._torch, tensor)
        dtype = self._types.get(name)
        if dtype is None:
            dtype = self._types[name] = torch_type(self._torch, name)
        return dtype, list(tensor["shape"])


def _strides(shape):
    """In elements, of rows that follow each other; as PyTorch counts them where one is empty."""
    strides, stride = [], 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= max(size, 1)
    return strides[::-1]


def _storages_last(torch):
    """Whether tensors can be made of storages, and keep the Python objects of those.

    PyTorch before 2.1 makes a new object for each look at a storage. A slab that hung on the first
    would be closed under the tensor.
    """
    core = torch._C
    if not (
        hasattr(core, "_construct_storage_from_data_pointer")
        and hasattr(core, "_construct_CUDA_Tensor_From_Storage_And_Metadata")
    ):
        return False
    octet = ctypes.c_uint8()
    storage = core._construct_storage_from_data_pointer(
        ctypes.addressof(octet), torch.device("cpu"), 1
    )
    tensor = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage, 0, (1,), (1,))
    object_ = weakref.ref(storage)
    del storage
    return object_() is not None and object_() is tensor.untyped_storage()

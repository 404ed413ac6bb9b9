"""CUDA devices: tensors lie in memory of the daemon's worker, which CUDA lets others open."""

import contextlib
import errno
import importlib.util
import os

from . import control
from .cuda_access import check_access, ordinal_of
from .cuda_arrays import CudaArrays, CupyArrays
from .cuda_driver import DriverError
from .cuda_slab import open_slab
from .errors import MountError
from .handle import device_info, open_handle, open_slab_handle, slab_numbers
from .index import read_index
from .lease import Attachment
from .torch_cuda import TorchCudaTensors

FRAMEWORKS = {"pt": TorchCudaTensors, "cp": CupyArrays, "cai": CudaArrays}
# How often load_all() loads again what another process has unloaded meanwhile.
LOADS = 4


def load_all(folder, device, framework):
    """All tensors of a mount, after loading those that are not loaded."""
    with _explaining(folder):
        arrays = _arrays_of(framework, device)
        index = read_index(folder)
        # Before anything is loaded that this process could not attach to.
        ordinal = ordinal_of(folder, _uuid(folder, device))
        wanted = {tensor["name"] for tensor in index["tensors"] if tensor["nbytes"]}
        made = _attach_slabs(folder, device, arrays, wanted)
        return {
            tensor["name"]: made[tensor["name"]]
            if tensor["nbytes"]
            else arrays.make(tensor, 0, ordinal, None)[0]
            for tensor in index["tensors"]
        }


def attach(folder, device, tensor, sources, framework):
    """A loaded tensor. sources are not needed."""
    with _explaining(folder):
        arrays = _arrays_of(framework, device)
        descriptor, handle = open_handle(folder, device, tensor)
        if handle["nbytes"] == 0:
            os.close(descriptor)
            ordinal = ordinal_of(folder, handle["device_uuid"])
            return arrays.make(handle, 0, ordinal, None)[0], None
        slab = _open(folder, descriptor, handle)
        array, owner = arrays.make(handle, slab.address + handle["offset"], slab.ordinal, slab)
        return array, Attachment(owner, slab.lease)


def _uuid(folder, device):
    info = device_info(folder, device)
    if info is None:
        control.run(folder, f"load {device} *")  # the daemon says why there is no such device
        info = device_info(folder, device)
    return info["uuid"]


def _attach_slabs(folder, device, arrays, wanted):
    """{name: array} of the wanted names at least. What has been attached stays leased meanwhile."""
    made, seen = {}, set()
    for loads in range(LOADS + 1):
        if loads > 0:
            control.run(folder, f"load {device} *")
        for number in slab_numbers(folder, device):
            if number not in seen:
                seen.add(number)
                made.update(_attach_slab(folder, device, arrays, number))
        missing = wanted - made.keys()
        if not missing:
            return made
    raise MountError(
        errno.EAGAIN,
        f"tensor {min(missing)!r} and {len(missing) - 1} more are unloaded from {device} as soon "
        "as they are loaded; by whom?",
        folder,
    )


def _attach_slab(folder, device, arrays, number):
    opened = open_slab_handle(folder, device, number)
    if opened is None:
        return {}
    descriptor, handle = opened
    slab = _open(folder, descriptor, handle)
    make, address, ordinal = arrays.make, slab.address, slab.ordinal
    return {
        tensor["name"]: make(tensor, address + tensor["offset"], ordinal, slab)[0]
        for tensor in handle["tensors"]
    }


def _open(folder, descriptor, handle):
    def find_ordinal(handle):
        check_access(folder, handle)
        return ordinal_of(folder, handle["device_uuid"])

    return open_slab(handle, descriptor, find_ordinal)


def _arrays_of(framework, device):
    if framework is None:
        framework = next(
            (
                name
                for name, module in (("pt", "torch"), ("cp", "cupy"))
                if importlib.util.find_spec(module)
            ),
            "cai",
        )
    if framework == "np":
        raise ValueError(
            f'framework="np" cannot hold what is on {device}: NumPy arrays are in the memory of '
            'the CPU; there are "pt", "cp" and "cai", or device="cpu"'
        )
    if framework not in FRAMEWORKS:
        raise ValueError(f'framework on {device} is "pt", "cp" or "cai", not {framework!r}')
    return FRAMEWORKS[framework]()


@contextlib.contextmanager
def _explaining(folder):
    """Makes what the driver says an error of the mount's."""
    try:
        yield
    except DriverError as error:
        number = errno.ENODEV if error.code is None else errno.EIO
        raise MountError(number, f"cannot attach: {error}", folder) from None

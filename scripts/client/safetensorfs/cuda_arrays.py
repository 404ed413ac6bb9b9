"""Arrays on device memory, without PyTorch: for CuPy, and for all who take pointers. No copies.

A maker has make(tensor, address, ordinal, slab) -> (array, owner). tensor is {"name", "dtype",
"shape", "nbytes"}; its bytes begin at address on the device of that ordinal; slab is kept open
until owner has died, which views of the array keep alive. Empty tensors have address 0 and slab
None.
"""

import importlib

import numpy as np

from .arrays import ML_TYPES, NUMPY_TYPES, PACKED, impossible


def form_of(tensor):
    """(typestr, shape) of a tensor, in types that every library for arrays on GPUs has.

    BF16 and the 8-bit floats are unsigned integers of the same size, which `.view(...)`
    reinterprets; F4 and F6 are their packed bytes, of shape (nbytes,). ValueError for a dtype that
    this version does not know.
    """
    dtype = tensor["dtype"]
    if dtype not in NUMPY_TYPES and dtype not in PACKED:
        raise ValueError(f"this version knows no dtype {dtype}")
    if dtype in PACKED:
        return "|u1", (tensor["nbytes"],)
    if dtype in ML_TYPES:
        return {"|V1": "|u1", "|V2": "<u2"}[NUMPY_TYPES[dtype]], tuple(tensor["shape"])
    return NUMPY_TYPES[dtype], tuple(tensor["shape"])


class CudaArray:
    """A tensor in device memory: where it is, for libraries that read __cuda_array_interface__.

    Those keep this object, and with it the memory. There are no views: `cupy.asarray(array)`,
    `numba.cuda.as_cuda_array(array)` or `torch.as_tensor(array, device=array.device)` make what
    has them.

    name, dtype (as in the header), shape, nbytes; device: "cuda:N" in this process;
    pointer: the device address of the first byte, 0 if nbytes is 0.
    """

    __slots__ = ("name", "dtype", "shape", "nbytes", "device", "pointer", "_slab", "__weakref__")

    def __init__(self, tensor, address, ordinal, slab):
        self.name, self.dtype, self.nbytes = tensor["name"], tensor["dtype"], tensor["nbytes"]
        self.shape, self.device = tuple(tensor["shape"]), f"cuda:{ordinal}"
        self.pointer, self._slab = address, slab

    @property
    def __cuda_array_interface__(self):
        """Version 3, with types and shapes as form_of() has them. RuntimeError in a forked child.

        There is no stream to wait for: the bytes were there before anyone could attach.
        """
        if self._slab is not None and not self._slab.lease.alive:
            raise RuntimeError(f"tensor {self.name!r} is in memory of the process that forked")
        typestr, shape = form_of(
            {"dtype": self.dtype, "shape": self.shape, "nbytes": self.nbytes}
        )
        return {
            "version": 3, "shape": shape, "typestr": typestr, "data": (self.pointer, False),
            "strides": None, "stream": None,
        }  # fmt: skip

    def __repr__(self):
        return f"<CudaArray {self.name!r} {self.dtype} {list(self.shape)} {self.device}>"


class CudaArrays:
    """Makes CudaArray objects. Needs nothing that is not here."""

    def make(self, tensor, address, ordinal, slab):
        try:
            form_of(tensor)
        except ValueError as error:
            raise impossible(tensor, "CudaArray", error) from None
        array = CudaArray(tensor, address, ordinal, slab)
        return array, array


class CupyArrays:
    """Makes CuPy arrays, of the types of form_of()."""

    def __init__(self):
        try:
            self._cupy = importlib.import_module("cupy")
        except ImportError as error:
            raise ImportError(f'framework="cp" needs CuPy: {error}') from error

    def make(self, tensor, address, ordinal, slab):
        owner = _Owner(slab)
        cuda = self._cupy.cuda
        try:
            typestr, shape = form_of(tensor)
            memory = cuda.UnownedMemory(address, tensor["nbytes"], owner, ordinal)
            pointer = cuda.MemoryPointer(memory, 0)
            return self._cupy.ndarray(shape, np.dtype(typestr), pointer), owner
        except ValueError as error:
            raise impossible(tensor, "CuPy", error) from None


class _Owner:
    """Keeps a slab for CuPy, whose own objects know no weak references."""

    __slots__ = ("_slab", "__weakref__")

    def __init__(self, slab):
        self._slab = slab

"""Arrays of NumPy and PyTorch on bytes that are mapped already. Nothing here copies."""

import importlib

import numpy as np

# What NumPy has no type for is what .npy files hold: void items of the same size, and for types
# below a byte the packed bytes.
NUMPY_TYPES = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "I16": "<i2", "U16": "<u2", "F16": "<f2",
    "I32": "<i4", "U32": "<u4", "F32": "<f4", "C64": "<c8", "F64": "<f8", "I64": "<i8",
    "U64": "<u8", "BF16": "|V2", "F8_E5M2": "|V1", "F8_E4M3": "|V1", "F8_E8M0": "|V1",
    "F8_E4M3FNUZ": "|V1", "F8_E5M2FNUZ": "|V1",
}  # fmt: skip
ML_TYPES = {
    "BF16": "bfloat16", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
TORCH_TYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16",
    "F16": "float16", "I32": "int32", "U32": "uint32", "F32": "float32", "C64": "complex64",
    "F64": "float64", "I64": "int64", "U64": "uint64", "BF16": "bfloat16",
    "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
PACKED = {"F4", "F6_E2M3", "F6_E3M2"}


class NumpyArrays:
    """Makes NumPy arrays.

    BF16 and the 8-bit floats are ml_dtypes' types where that module can be imported, else void
    types of 2 and 1 bytes (`array.view(...)` reinterprets them). F4 and F6 are the packed bytes,
    uint8 of shape (nbytes,).
    """

    writable = False

    def __init__(self):
        self._types = _Cache(_numpy_type)

    def make(self, tensor, buffer, offset):
        """The array of an .index.json entry whose bytes begin at offset in buffer; keeps buffer."""
        try:
            dtype = self._types[tensor["dtype"]]
            if dtype is None:
                return np.ndarray(tensor["nbytes"], np.uint8, buffer, offset)
            return np.ndarray(tensor["shape"], dtype, buffer, offset)
        except ValueError as error:
            raise impossible(tensor, "NumPy", error) from None


class TorchTensors:
    """Makes PyTorch tensors, each with a storage of its own.

    F4 is float4_e2m1fn_x2 with the last dimension halved, where that is even and PyTorch has the
    type; other F4 and all F6 are the packed bytes, uint8 of shape (nbytes,).
    """

    # PyTorch has no read-only tensors: it warns of read-only memory, and a write to it would
    # end the process.
    writable = True

    def __init__(self):
        try:
            self._torch = importlib.import_module("torch")
        except ImportError as error:
            raise ImportError(f'framework="pt" needs PyTorch: {error}') from error
        self._types = _Cache(self._type)

    def make(self, tensor, buffer, offset):
        """The tensor of an .index.json entry whose bytes begin at offset in buffer; keeps buffer.

        Made by way of NumPy, which takes half the time of torch.frombuffer and reshaping.
        """
        try:
            numpy_type, viewed_as = self._types[tensor["dtype"]]
            if numpy_type is None:
                return self._packed(tensor, buffer, offset)
            made = self._torch.from_numpy(np.ndarray(tensor["shape"], numpy_type, buffer, offset))
            return made if viewed_as is None else made.view(viewed_as)
        except ValueError as error:
            if tensor["nbytes"] == 0:
                return self._empty(tensor)
            raise impossible(tensor, "PyTorch", error) from None

    def _empty(self, tensor):
        """What NumPy finds too large: it multiplies the other dimensions of an empty shape."""
        try:
            dtype = getattr(self._torch, TORCH_TYPES[tensor["dtype"]])
            return self._torch.empty(tensor["shape"], dtype=dtype)
        except (AttributeError, KeyError, RuntimeError) as error:
            raise impossible(tensor, "PyTorch", error) from None

    def _type(self, name):
        """(type of the NumPy array, type to view it as or None)."""
        if name in PACKED:
            return None, None
        found = torch_type(self._torch, name)
        if name in ML_TYPES:
            return np.dtype({"|V1": "|u1", "|V2": "<i2"}[NUMPY_TYPES[name]]), found
        return np.dtype(NUMPY_TYPES[name]), None

    def _packed(self, tensor, buffer, offset):
        dtype, shape = packed_form(self._torch, tensor)
        return self._torch.from_numpy(np.ndarray(shape, np.uint8, buffer, offset)).view(dtype)


FRAMEWORKS = {"np": NumpyArrays, "pt": TorchTensors}


def arrays_of(framework):
    """The maker of arrays of "np", "pt" or None, which is "np"."""
    if framework is None:
        framework = "np"
    if framework not in FRAMEWORKS:
        raise ValueError(f'framework is "np" or "pt", not {framework!r}')
    return FRAMEWORKS[framework]()


class _Cache(dict):
    """A dict that makes what it lacks; a lookup costs what a dict's does."""

    def __init__(self, make):
        super().__init__()
        self._make = make

    def __missing__(self, key):
        self[key] = made = self._make(key)
        return made


def _numpy_type(name):
    if name in PACKED:
        return None
    if name not in NUMPY_TYPES:
        raise ValueError(f"this version knows no dtype {name}")
    if name in ML_TYPES:
        try:
            return np.dtype(getattr(importlib.import_module("ml_dtypes"), ML_TYPES[name]))
        except (ImportError, AttributeError):
            pass
    return np.dtype(NUMPY_TYPES[name])


def torch_type(torch, name):
    """PyTorch's type for a dtype that is none of PACKED; ValueError where it has none."""
    if name not in TORCH_TYPES:
        raise ValueError(f"this version knows no dtype {name}")
    found = getattr(torch, TORCH_TYPES[name], None)
    if found is None:
        raise ValueError(f"PyTorch {torch.__version__} has no {TORCH_TYPES[name]}")
    return found


def packed_form(torch, tensor):
    """(type, shape) of a PyTorch tensor of a dtype of PACKED; ValueError for any other."""
    if tensor["dtype"] not in PACKED:
        raise ValueError(f"this version knows no dtype {tensor['dtype']}")
    shape, pairs = tensor["shape"], getattr(torch, "float4_e2m1fn_x2", None)
    if tensor["dtype"] == "F4" and pairs is not None and shape and shape[-1] % 2 == 0:
        return pairs, [*shape[:-1], shape[-1] // 2]
    return torch.uint8, [tensor["nbytes"]]


def impossible(tensor, library, error):
    """The error for a tensor that a library has no type or no shape for."""
    return ValueError(
        f"tensor {tensor['name']!r}, {tensor['dtype']} {tensor['shape']}: {library} cannot hold "
        f"it: {error}"
    )

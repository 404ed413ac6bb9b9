"""What the client uses of CuPy, which itself is larger than all else that the tests install."""

import numpy

from . import cuda  # noqa: F401


class ndarray:  # noqa: N801
    def __init__(self, shape, dtype, memptr):
        self.shape, self.dtype, self.data = tuple(shape), numpy.dtype(dtype), memptr

    @property
    def nbytes(self):
        return int(numpy.prod(self.shape, dtype=int)) * self.dtype.itemsize

    def __getitem__(self, rows):
        """Only array[n:], of the first dimension."""
        count = len(range(*rows.indices(self.shape[0])))
        row = self.nbytes // self.shape[0]
        pointer = cuda.MemoryPointer(self.data.mem, self.data.offset + rows.start * row)
        return ndarray((count, *self.shape[1:]), self.dtype, pointer)

"""All tensors of a mount at once."""

import os

from .devices import module_of


def load_file(path, device="cpu", framework=None):
    """All tensors of a mount, {name: array}, without copying one byte.

    path: a mount, or a `<stem>.tensors` folder of a mounted folder.
    device: "cpu", or "cuda:N" as the mount numbers its devices (.devices). Another N may be the
        same GPU here: it is found by its UUID.
    framework: on cpu, "np" for NumPy arrays, "pt" for PyTorch tensors; None is "np", whatever
        else has been imported, so that a program gets the same types in every environment.
        On cuda, "pt", "cp" for CuPy arrays, or "cai" for CudaArray objects, which need neither
        and tell any library by __cuda_array_interface__ where the bytes are; None is the first of
        these that is installed.

    On cuda, tensors that are not loaded are loaded first, and all are attached where the daemon
    holds them. The memory is leased and shared: it stays loaded until the last tensor of its slab
    has died, and what one process writes to it is seen by all (Mount.verify() tells). A tensor
    that dies waits for all work on its device if it is its slab's last, so none should while a
    CUDA graph is captured. Tensors are unusable in a forked child. CuPy arrays and CudaArray
    objects have unsigned integers for BF16 and the 8-bit floats.

    On cpu, the arrays lie on the source file's own pages: the mount is asked once, for its
    .index.json, and reading an array reads the file. Where a source has been replaced since it was
    mounted, or its path leads nowhere in this container, they lie on the mount's .all.safetensors.
    NumPy arrays are read-only. PyTorch tensors are on a copy-on-write mapping, since PyTorch has
    no read-only tensors: what is written to one takes memory of its own, stays in this process
    and never reaches the file. Either way the mapping lives as long as an array or view of it
    does, also after the file has gone or the mount has ended; but reading what was cut off a file
    that has been truncated in place ends the process (SIGBUS), as with any mapping.

    Shapes and types are those of the header. What NumPy has no type for: BF16 and the 8-bit
    floats are ml_dtypes' types where ml_dtypes can be imported, else void types; F4 and F6 are
    packed bytes, uint8 of shape (nbytes,), but in PyTorch F4 is float4_e2m1fn_x2 with the last
    dimension halved where that is even.

    Raises MountError (an OSError) that names the folder and what is missing there, or what keeps
    this process from attaching; CommandError where the daemon cannot load; ValueError for a tensor
    that the framework cannot hold. Thread-safe.
    """
    return module_of(device).load_all(os.fsdecode(path), device, framework)

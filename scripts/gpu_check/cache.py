"""What of a file is in the page cache."""

import ctypes
import mmap
import os

PAGE = mmap.PAGESIZE


def drop(path):
    """Takes a file's pages out of the cache, as far as this user may. Returns how."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("1")
        return "caches dropped"
    except OSError:
        return "the kernel advised to drop them"


def share(path):
    """The share of a file's pages that are cached; the file is this user's own.

    Asked by mincore: a read with RWF_NOWAIT would begin to fetch what it asks for.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapping:
        pages = (len(mapping) + PAGE - 1) // PAGE
        vector = (ctypes.c_ubyte * pages)()
        first = ctypes.c_char.from_buffer(mapping)
        code = libc.mincore(
            ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(mapping)), vector
        )
        del first
    if code != 0:
        raise OSError(ctypes.get_errno(), "mincore")
    return sum(byte & 1 for byte in vector) / pages

"""Maps safetensors files into memory: the sources themselves, or what the mount serves of them."""

import errno
import json
import mmap
import os
import struct

from .errors import MountError
from .index import is_same_file

# Not in the mmap module before Python 3.11.
MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)

OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def map_file(descriptor, writable, begin=0, nbytes=0):
    """Maps a file, or nbytes of it from begin (a multiple of the page size). Closes nothing.

    writable: a private, copy-on-write mapping; what is written stays in this process. Otherwise
    a shared mapping that cannot be written.
    """
    if not writable:
        return mmap.mmap(descriptor, nbytes, access=mmap.ACCESS_READ, offset=begin)
    # Nothing is reserved for the copies, or a model larger than memory could not be mapped.
    return mmap.mmap(
        descriptor,
        nbytes,
        flags=mmap.MAP_PRIVATE | MAP_NORESERVE,
        prot=mmap.PROT_READ | mmap.PROT_WRITE,
        offset=begin,
    )


def map_range(descriptor, writable, offset, nbytes):
    """(mapping, offset in it): the pages of a file that hold nbytes from offset."""
    begin = offset - offset % mmap.ALLOCATIONGRANULARITY
    return map_file(descriptor, writable, begin, offset + nbytes - begin), offset - begin


def open_source(source):
    """A descriptor of a source, or None where its path leads nowhere or to another file by now.

    source: an entry of "sources" in .index.json.
    """
    try:
        descriptor = os.open(source["path"], os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in OUT_OF_RESOURCES:
            raise
        return None
    if is_same_file(os.fstat(descriptor), source):
        return descriptor
    os.close(descriptor)
    return None


def map_source(source, writable):
    """The mapping of a source, or None where only the mount can give its bytes."""
    descriptor = open_source(source)
    if descriptor is None:
        return None
    try:
        return map_file(descriptor, writable)
    except OSError as error:
        if error.errno in OUT_OF_RESOURCES:
            raise cannot_map(error, source["path"], source["nbytes"], writable) from None
        return None
    finally:
        os.close(descriptor)


def map_tensors(folder, index, writable):
    """{source: mapping of it} for every tensor of an index, with as few mappings as it takes.

    Sources that cannot be mapped themselves are read through the mount's .all.safetensors, and
    the tensors of index that lie in them get their offset in that file instead.
    """
    mappings, missing = {}, []
    for source in index["sources"]:
        mapping = map_source(source, writable)
        if mapping is None:
            missing.append(source["path"])
        else:
            mappings[source["path"]] = mapping
    if missing:
        served, offsets = _map_all(folder, writable)
        for path in missing:
            mappings[path] = served
        for tensor in index["tensors"]:
            if mappings[tensor["source"]] is served:
                tensor["offset"] = offsets[tensor["name"]]
    return mappings


def _map_all(folder, writable):
    """The mapping of .all.safetensors, and where in it each tensor begins."""
    path = os.path.join(folder, ".all.safetensors")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ESTALE:
            raise MountError(
                error.errno,
                "a source was changed in place since it was mounted (.status says which): "
                "unmount and mount again",
                folder,
            ) from None
        raise
    try:
        mapping = map_file(descriptor, writable)
    except OSError as error:
        raise cannot_map(error, path, os.fstat(descriptor).st_size, writable) from None
    finally:
        os.close(descriptor)
    (length,) = struct.unpack_from("<Q", mapping)
    header = json.loads(mapping[8 : 8 + length])
    header.pop("__metadata__", None)
    return mapping, {name: 8 + length + entry["data_offsets"][0] for name, entry in header.items()}


def cannot_map(error, path, nbytes, writable):
    sentence = f"cannot map {nbytes} bytes: {error.strerror}"
    if error.errno == errno.ENOMEM and writable:
        sentence += (
            " (PyTorch tensors lie on a copy-on-write mapping, which strict overcommit, "
            'vm.overcommit_memory=2, counts in full; framework="np" needs none)'
        )
    return MountError(error.errno, sentence, path)

"""The cpu device: tensors are mapped from the source, whose pages the daemon keeps in memory."""

import os

from .arrays import arrays_of
from .handle import open_handle
from .index import read_index
from .lease import Attachment, hold
from .mapping import cannot_map, map_range, map_tensors, open_source


def load_all(folder, device, framework):
    """All tensors of a mount, loaded or not: the mapping is the same."""
    arrays = arrays_of(framework)
    index = read_index(folder)
    mappings = map_tensors(folder, index, arrays.writable)
    make = arrays.make
    return {
        tensor["name"]: make(tensor, mappings[tensor["source"]], tensor["offset"])
        for tensor in index["tensors"]
    }


def attach(folder, device, tensor, sources, framework):
    """A loaded tensor. Its mapping is its own, so that the lease ends when it dies."""
    arrays = arrays_of(framework)
    descriptor, handle = open_handle(folder, device, tensor)
    try:
        array, owner = _map(folder, tensor, handle, sources, arrays)
    except BaseException:
        os.close(descriptor)
        raise
    if owner is None:
        os.close(descriptor)
        return array, None
    return array, Attachment(owner, hold(descriptor, owner))


def _map(folder, tensor, handle, sources, arrays):
    """(array, what dies with its last view; None where it has no bytes)."""
    entry = {key: handle[key] for key in ("name", "dtype", "shape", "nbytes")}
    if entry["nbytes"] == 0:
        return arrays.make(entry, b"" if not arrays.writable else bytearray(), 0), None
    source = sources.get(handle["path"])
    descriptor, offset = open_source(source) if source else None, handle["offset"]
    if descriptor is None:
        descriptor, offset = os.open(os.path.join(folder, tensor.path), os.O_RDONLY), 0
    try:
        mapping, offset = map_range(descriptor, arrays.writable, offset, entry["nbytes"])
    except OSError as error:
        path = os.path.join(folder, tensor.path)
        raise cannot_map(error, path, entry["nbytes"], arrays.writable) from None
    finally:
        os.close(descriptor)
    return arrays.make(entry, mapping, offset), mapping

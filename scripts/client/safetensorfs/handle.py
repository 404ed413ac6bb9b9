"""Handles: what the daemon says of loaded memory. An open descriptor of one is a lease on it."""

import errno
import json
import os

from .errors import MountError

VERSION = 1


def open_handle(folder, device, tensor):
    """(descriptor, parsed handle) of a loaded tensor; MountError where there is none.

    tensor: a TensorInfo. The descriptor is the caller's.
    """
    path = os.path.join(folder, ".devices", device, "handles", tensor.path)
    try:
        return _open(path, folder)
    except MountError:
        raise
    except OSError as error:
        raise _refusal(error, folder, device, tensor.name) from None


def open_slab_handle(folder, device, number):
    """The same for a slab, memory that holds several tensors; None where it is gone."""
    path = os.path.join(folder, ".devices", device, "slabs", number)
    try:
        return _open(path, folder)
    except MountError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return None
        raise _refusal(error, folder, device) from None


def slab_numbers(folder, device):
    """The slabs of this checkpoint on a device, as strings; none where there is no such device."""
    try:
        return os.listdir(os.path.join(folder, ".devices", device, "slabs"))
    except FileNotFoundError:
        return []


def device_info(folder, device):
    """The parsed info of a device, {"name", "uuid", ...}; None where there is no such device."""
    try:
        with open(os.path.join(folder, ".devices", device, "info"), "rb", buffering=0) as file:
            return json.loads(file.readall())
    except FileNotFoundError:
        return None


def _open(path, folder):
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            handle = json.loads(file.readall())
        if handle.get("version") != VERSION:
            raise MountError(
                errno.EINVAL,
                f"its handles have version {handle.get('version')}, this client reads version "
                f"{VERSION}: install the client that came with the daemon",
                folder,
            )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, handle


def _refusal(error, folder, device, name=None):
    what = f"handle of {name!r} on {device}" if name is not None else f"slabs of {device}"
    sentence = f"{what}: {error.strerror}"
    if error.errno == errno.ENOENT:
        if not os.path.isdir(os.path.join(folder, ".devices", device)):
            there = ", ".join(sorted(os.listdir(os.path.join(folder, ".devices"))))
            return MountError(errno.ENODEV, f"has no device {device}, only {there}", folder)
        sentence = (
            f"tensor {name!r} is not loaded on {device}; load it first: "
            f"Mount({folder!r}).load({device!r}, names=[{name!r}])"
        )
    elif error.errno == errno.EACCES:
        sentence += "; only the user who mounted it attaches, and the group given with -o gid="
    return MountError(error.errno, sentence, folder)

"""What a mount holds, as its .index.json tells."""

import errno
import io
import json
import os
import stat
from typing import NamedTuple

from .errors import MountError

VERSION = 1


class TensorInfo(NamedTuple):
    """One tensor of a mount. nbytes and offset are in bytes."""

    name: str
    path: str  # of the tensor's file, relative to the mount
    dtype: str  # as in the safetensors header: "F32", "BF16", ...
    shape: tuple
    nbytes: int
    source: str  # absolute path of the safetensors file that holds the bytes
    offset: int  # of the first byte, from the start of source


def read_file(path):
    """The bytes of a file, with one open and as few reads as the size allows."""
    with io.FileIO(path) as file:
        return file.readall()


def read_index(folder):
    """The parsed .index.json of a mount, {"sources": [...], "tensors": [...]}; or MountError."""
    path = os.path.join(folder, ".index.json")
    try:
        index = json.loads(read_file(path))
    except OSError as error:
        raise explained(error, folder) from None
    except ValueError as error:
        raise MountError(
            errno.EINVAL, f"its .index.json is not JSON ({error}); is this a mount?", folder
        ) from None
    if not isinstance(index, dict) or "sources" not in index or "tensors" not in index:
        raise MountError(
            errno.EINVAL, "its .index.json is not the one of a safetensorfs mount", folder
        )
    if index.get("version") != VERSION:
        raise MountError(
            errno.EINVAL,
            f"its .index.json has version {index.get('version')}, this client reads version "
            f"{VERSION}: install the client that came with the daemon",
            folder,
        )
    return index


def check_folder(folder):
    """Raises MountError unless folder holds a checkpoint; costs no reading of the index."""
    try:
        os.stat(os.path.join(folder, ".index.json"))
    except OSError as error:
        raise explained(error, folder) from None


def explained(error, folder):
    """Why reading a mount's .index.json failed, in words, with what to do about it."""
    if error.errno == errno.ENOTCONN:
        sentence = f"the daemon has ended; `fusermount3 -uz {folder}` clears the dead mount"
    elif error.errno == errno.ENOTDIR:
        sentence = (
            f"is a file, not a mounted folder; mount it first: safetensorfs {folder} MOUNTPOINT"
        )
    elif error.errno == errno.ENOENT:
        sentence = _what_is_missing(folder)
    elif error.errno == errno.EACCES:
        sentence = (
            "permission denied; a mount is for the user who made it, unless it was made with "
            "-o allow_other"
        )
    else:
        sentence = f".index.json: {error.strerror}"
    return MountError(error.errno, sentence, folder)


def _what_is_missing(folder):
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return "no such folder"
    except OSError as error:
        return error.strerror
    checkpoints = [
        name
        for name in names
        if name.endswith(".tensors") and os.path.exists(os.path.join(folder, name, ".index.json"))
    ]
    if not checkpoints:
        return "has no .index.json, so it is not a safetensorfs mount; is it mounted?"
    shown = ", ".join(os.path.join(folder, name) for name in checkpoints[:5])
    more = f" and {len(checkpoints) - 5} more" if len(checkpoints) > 5 else ""
    return f"has no .index.json: it is a mounted folder of checkpoints; name one of {shown}{more}"


def is_same_file(status, source):
    """Whether an open file (its fstat) is the one that an entry of "sources" describes."""
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_size == source["nbytes"]
        and status.st_mtime_ns == source["mtime_ns"]
        and status.st_ino == source["inode"]
    )

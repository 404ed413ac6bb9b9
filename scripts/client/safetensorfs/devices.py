"""Which devices this client can attach to.

A kind of device is a module with two functions:

    load_all(folder, device, framework) -> {name: array}: all tensors of a mount
    attach(folder, device, tensor, sources, framework) -> (array, Attachment): a loaded tensor, of
        which tensor is the TensorInfo, leased until its last view has died; the Attachment is None
        for a tensor without bytes, which needs no lease.

framework is the user's word, or None; sources are those of .index.json by path.
"""

import re

from . import cpu, cuda


def module_of(device):
    """The module of a device spelled as PyTorch spells it; ValueError where there is none."""
    if device == "cpu":
        return cpu
    if re.fullmatch("cuda:[0-9]+", device):
        return cuda
    raise ValueError(
        f"device {device!r} is not supported by this version, which attaches to cpu and cuda:N "
        "(cuda:0, cuda:1, ...) only"
    )

"""Which devices this client can attach to.

A device is a module with two functions:

    load_all(folder, arrays) -> {name: array}: all tensors of a mount
    attach(folder, tensor, handle, sources, arrays) -> (array, owner): the loaded tensor that a
        handle describes. The lease on it is kept until owner has died; None keeps none.
"""

from . import cpu

MODULES = {"cpu": cpu}


def module_of(device):
    """The module of a device spelled as PyTorch spells it; ValueError where there is none."""
    if device not in MODULES:
        raise ValueError(
            f"device {device!r} is not supported by this version, which attaches to "
            f"{', '.join(MODULES)} only"
        )
    return MODULES[device]

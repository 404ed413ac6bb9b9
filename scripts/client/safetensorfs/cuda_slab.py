"""Slabs: device memory of the daemon's worker process, opened in this process.

A slab holds many tensors; CUDA opens and closes it as a whole. Each is open once in a process,
under one lease, whoever attaches to how many of its tensors.
"""

import os
import threading
import warnings
import weakref

from .cuda_driver import DriverError, driver
from .lease import hold


class Slab:
    """An opened slab.

    address: of its first byte, in this process. ordinal: its device, in this process.
    lease: alive until the slab is closed; in a forked child it is dead at once.

    It is closed when this object has died, so whatever uses the memory keeps a reference: all work
    in the device's context is waited for, the memory is closed, the primary context that was
    retained for it released, and the lease ended. Nothing of that happens at interpreter exit, when
    the driver may have ended before, nor in a forked child, whose CUDA is unusable.
    """

    __slots__ = ("address", "lease", "ordinal", "__weakref__")

    def __init__(self, ordinal, ipc_handle, descriptor):
        """Takes descriptor, but not if it fails (DriverError). ipc_handle: 64 bytes."""
        api = driver()
        context = api.retain(ordinal)
        try:
            self.address = api.open_memory(context, ipc_handle)
        except BaseException:
            api.release(ordinal)
            raise
        self.ordinal = ordinal
        self.lease = hold(descriptor, self, _Closing(api, context, ordinal, self.address))


class _Closing:
    """What is to be done before the lease on a slab may end."""

    __slots__ = ("_driver", "_context", "_ordinal", "_address")

    def __init__(self, api, context, ordinal, address):
        self._driver, self._context = api, context
        self._ordinal, self._address = ordinal, address

    def __call__(self):
        """False where the driver refuses: freeing memory that is open is undefined in CUDA."""
        try:
            self._driver.close_memory(self._context, self._address)
            self._driver.release(self._ordinal)
        except DriverError as error:
            warnings.warn(
                f"memory of safetensorfs stays open, and its lease, until this process ends: "
                f"{error}",
                ResourceWarning,
                stacklevel=2,
            )
            return False
        return True


# Closing takes no lock: it may come in the middle of opening, whenever garbage is collected.
_lock = threading.RLock()
_slabs = weakref.WeakValueDictionary()


def key_of(handle):
    """What tells a slab from all others, of other workers and daemons too. handle: parsed."""
    return tuple(
        handle[field]
        for field in ("device_uuid", "pid_namespace", "pid", "pid_start_ticks", "slab")
    )


def open_slab(handle, descriptor, find_ordinal):
    """The slab of a handle, which may be open already. Takes descriptor, whatever happens.

    find_ordinal: called with the handle where it must be opened; returns the device's ordinal, or
    raises what keeps this process from attaching. DriverError where the driver refuses.
    """
    try:
        with _lock:
            slab = _slabs.get(key_of(handle))
            if slab is None:
                ordinal = find_ordinal(handle)
                slab = Slab(ordinal, bytes.fromhex(handle["ipc_handle"]), descriptor)
                descriptor = None
                _slabs[key_of(handle)] = slab
            return slab
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _forget_in_child():
    """The child has the objects of the parent's slabs, but must not attach by them."""
    global _lock
    _lock = threading.RLock()
    _slabs.clear()


os.register_at_fork(after_in_child=_forget_in_child)

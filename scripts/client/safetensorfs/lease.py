"""Leases: descriptors of handles, open for as long as somebody uses what they lead to."""

import os
import weakref

# Descriptor -> the finalizer that closes it. The entries of dead leases are gone.
_held = {}


def hold(descriptor, owner):
    """Keeps descriptor open until owner has died. Returns its finalizer, alive until then.

    In a forked child the descriptor is closed at once, so that the lease is the parent's alone.
    """
    finalizer = weakref.finalize(owner, _release, descriptor)
    # The kernel closes what is open at exit; the order of Python's own clean-up is not to be
    # relied on, and other threads may still be reading the tensor.
    finalizer.atexit = False
    _held[descriptor] = finalizer
    return finalizer


def _release(descriptor):
    _held.pop(descriptor, None)
    os.close(descriptor)


def _release_in_child():
    for descriptor, finalizer in list(_held.items()):
        if finalizer.detach():
            _release(descriptor)


os.register_at_fork(after_in_child=_release_in_child)

"""Leases: descriptors of handles, open for as long as somebody uses what they lead to."""

import os
import weakref

# Descriptor -> the finalizer that closes it. The entries of leases that have ended are gone.
_held = {}


def hold(descriptor, owner, let_go=None):
    """Keeps descriptor open until owner has died. Returns its finalizer, alive until then.

    let_go: called first, where that is not all there is to do; if it returns False, the memory is
    still in use and descriptor stays open for as long as this process lives. It may run in any
    thread, at any time that Python collects garbage, so it must take no lock.

    In a forked child the descriptor is closed at once, so that the lease is the parent's alone,
    and let_go is never called.
    """
    finalizer = weakref.finalize(owner, _release, descriptor, let_go)
    # The kernel closes what is open at exit; the order of Python's own clean-up is not to be
    # relied on, and other threads may still be reading the tensor.
    finalizer.atexit = False
    _held[descriptor] = finalizer
    return finalizer


class Attachment:
    """A tensor that somebody has attached to. alive: it has not died, and is this process's."""

    __slots__ = ("_owner", "_lease")

    def __init__(self, owner, lease):
        """owner: the object that dies with the tensor's last view. lease: of hold()."""
        self._owner, self._lease = weakref.ref(owner), lease

    @property
    def alive(self):
        return self._owner() is not None and self._lease.alive


def _release(descriptor, let_go):
    if let_go is not None and not let_go():
        return
    _held.pop(descriptor, None)
    os.close(descriptor)


def _release_in_child():
    for descriptor, finalizer in list(_held.items()):
        finalizer.detach()
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_release_in_child)

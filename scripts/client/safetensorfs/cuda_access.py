"""Whether this process can attach to what a daemon's worker holds, and if not, why.

CUDA's own answers ("invalid argument") do not tell, so everything is looked at before it is asked.
"""

import errno
import os
import uuid

from .cuda_driver import driver
from .errors import MountError


def ordinal_of(folder, device_uuid):
    """The ordinal in this process of the device that the daemon calls device_uuid.

    Ordinals of two processes say nothing of each other: each has its own CUDA_VISIBLE_DEVICES.
    MountError where the device is not visible here, DriverError where there is no driver.
    """
    uuids = driver().uuids
    try:
        return uuids.index(_parse(device_uuid))
    except ValueError:
        pass
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    setting = "not set" if visible is None else repr(visible)
    shown = ", ".join(f"GPU-{uuid_}" for uuid_ in uuids) or "no device"
    raise MountError(
        errno.ENODEV,
        f"device {device_uuid} is not visible to this process: CUDA_VISIBLE_DEVICES is {setting}, "
        f"and CUDA shows {shown}",
        folder,
    )


def check_access(folder, handle):
    """Raises MountError unless this process may open the memory of a handle (parsed)."""
    device = handle["device"]
    if handle["export"] != "cuda_ipc":
        _refuse(
            folder,
            errno.EOPNOTSUPP,
            f"memory of {device} cannot be shared with other processes: "
            f"{handle.get('reason', 'the daemon gives no reason')}",
        )
    if handle["euid"] != os.geteuid():
        _refuse(
            folder,
            errno.EPERM,
            f"the worker that holds {device} runs as user {handle['euid']}, this process as user "
            f"{os.geteuid()}, and CUDA shares memory within one user only: run as user "
            f"{handle['euid']}, or have root mount with -o uid={os.geteuid()}",
        )
    namespace = _pid_namespace()
    if namespace not in (None, handle["pid_namespace"]):
        _refuse(
            folder,
            errno.EPERM,
            f"the worker that holds {device} is in PID namespace {handle['pid_namespace']}, this "
            f"process in {namespace}, and CUDA shares memory within one namespace only; in "
            "Kubernetes: shareProcessNamespace: true",
        )
    if not _lives(handle["pid"], handle["pid_start_ticks"]):
        _refuse(
            folder,
            errno.ESRCH,
            f"the worker that held {device}, pid {handle['pid']}, has ended, and what was loaded "
            "is gone: load it again",
        )


def _refuse(folder, number, sentence):
    raise MountError(number, sentence, folder)


def _parse(device_uuid):
    """The UUID of a word such as GPU-<uuid> or MIG-<uuid>; ValueError."""
    return uuid.UUID(device_uuid.partition("-")[2])


def _pid_namespace():
    """None where /proc is not mounted."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None


def _lives(pid, start_ticks):
    """A number is used again; with the time at which its process began it is one process's."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        # No /proc at all, or one that hides other processes: let the driver say.
        return not os.path.exists("/proc/self/stat")
    return fields[0] not in (b"Z", b"X") and int(fields[19]) == start_ticks

"""Commands a mount through .control, and asks what came of it."""

import ctypes
import errno
import json
import os
import resource
import time
from pathlib import Path

import pytest

from checkpoints import file_name
from daemon import DEADLINE

PAGE = os.sysconf("SC_PAGESIZE")
REPORT_NBYTES = 1 << 20
CAP_IPC_LOCK = 14
# What the tests that are not about one kind of device command: cpu, or one of the simulation's.
DEVICE = os.environ.get("SAFETENSORFS_DEVICE", "cpu")
cpu_only = pytest.mark.skipif(DEVICE != "cpu", reason="about the cpu device")
cuda_only = pytest.mark.skipif(DEVICE == "cpu", reason="about cuda devices")


def command(mounted, *lines):
    """Writes lines to .control in one piece; returns the report. Raises OSError if one fails."""
    control = os.open(control_of(mounted), os.O_RDWR)
    try:
        text = b"".join(os.fsencode(line) + b"\n" for line in lines)
        assert os.write(control, text) == len(text)
        return os.read(control, REPORT_NBYTES).decode("utf-8", "surrogateescape")
    finally:
        os.close(control)


def refusal(mounted, *lines):
    """(errno's name, what the report says last) of lines of which one must fail."""
    control = os.open(control_of(mounted), os.O_RDWR)
    try:
        with pytest.raises(OSError) as refused:
            os.write(control, b"".join(os.fsencode(line) + b"\n" for line in lines))
        report = os.read(control, REPORT_NBYTES).decode("utf-8", "surrogateescape")
        return errno.errorcode[refused.value.errno], report.rstrip("\n").rpartition("\n")[2]
    finally:
        os.close(control)


def report(mounted):
    return control_of(mounted).read_bytes().decode("utf-8", "surrogateescape")


def status(mounted):
    return json.loads((mounted / ".status").read_bytes())


def device_status(mounted, device=DEVICE):
    """What .status says of a device that somebody has asked for."""
    return next(shown for shown in status(mounted)["devices"] if shown["name"] == device)


def loads(mounted):
    """What runs and waits, in order."""
    return status(mounted)["loads"]


def control_of(mounted):
    return mounted / ".control"


def device_of(mounted, device=DEVICE):
    return mounted / ".devices" / device


def data_of(mounted, device=DEVICE):
    return device_of(mounted, device) / "data"


def loaded(mounted, device=DEVICE):
    """File names, as bytes, of what a device holds."""
    return set(os.listdir(os.fsencode(data_of(mounted, device))))


def holds(mounted, *names, device=DEVICE):
    """Whether a device holds these tensors and no others."""
    return loaded(mounted, device) == {file_name(name) for name in names}


def data_file(mounted, name, device=DEVICE):
    return os.path.join(os.fsencode(data_of(mounted, device)), file_name(name))


def read_data(mounted, name, device=DEVICE):
    with open(data_file(mounted, name, device), "rb") as file:
        return file.read()


def handle_of(mounted, name, device=DEVICE):
    return os.path.join(os.fsencode(device_of(mounted, device) / "handles"), file_name(name))


def wait_until(condition, what):
    """Waits for what nothing tells about."""
    end = time.monotonic() + DEADLINE
    while not (found := condition()):
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(0.01)
    return found


def locked_nbytes(mounted):
    """What the daemon has locked; under AddressSanitizer, whose mlock does nothing, what it would."""
    if os.environ.get("SAFETENSORFS_SANITIZED"):
        return device_status(mounted, "cpu")["held_nbytes"]
    for line in Path(f"/proc/{mounted.pid}/status").read_text().splitlines():
        if line.startswith("VmLck:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmLck")


def pages_nbytes(checkpoint, names):
    """Bytes of the pages that hold these tensors, each page counted once."""
    pages = set()
    for name in names:
        begin = checkpoint.offsets[name]
        end = begin + len(checkpoint[name].data)
        if end > begin:
            pages.update(range(begin // PAGE, (end + PAGE - 1) // PAGE))
    return len(pages) * PAGE


def skip_unless_lockable(nbytes):
    """For tests that lock more than a common RLIMIT_MEMLOCK."""
    status_text = Path("/proc/self/status").read_text()
    effective = int(status_text.split("CapEff:")[1].split()[0], 16)
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    if not effective >> CAP_IPC_LOCK & 1 and limit not in (resource.RLIM_INFINITY,):
        if limit < nbytes:
            pytest.skip(f"RLIMIT_MEMLOCK allows {limit} bytes, not {nbytes}")


def write_once(descriptor, data):
    """One write(2): os.write() repeats what a signal has interrupted."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.write(descriptor, data, ctypes.c_size_t(len(data))) < 0:
        return errno.errorcode[ctypes.get_errno()]
    return "done"

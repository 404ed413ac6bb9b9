"""What arrays of each dtype look like, and small things that several tests need."""

import json
import os
import pty
import subprocess
import sys
import time

import numpy

from checkpoints import DTYPE_BITS
from daemon import DEADLINE, REPOSITORY, run

CLIENT = REPOSITORY / "scripts/client"

NUMPY = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16",
    "F16": "float16", "I32": "int32", "U32": "uint32", "F32": "float32", "C64": "complex64",
    "F64": "float64", "I64": "int64", "U64": "uint64",
}  # fmt: skip
SMALL_FLOATS = {
    "BF16": "bfloat16", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
PACKED = ("F4", "F6_E2M3", "F6_E3M2")

assert {*NUMPY, *SMALL_FLOATS, *PACKED} == set(DTYPE_BITS)


def environment(**variables):
    """Of a child that can import the client."""
    return {**os.environ, "PYTHONPATH": os.fspath(CLIENT), **variables}


def python(*words):
    return (sys.executable, *words)


TOOL = python("-m", "safetensorfs.command_line")


def ctl(*words, **options):
    return run(*TOOL, *words, env=environment(), **options)


def on_terminal(*words):
    """(exit status, everything that the terminal was sent)."""
    master, slave = pty.openpty()
    child = subprocess.Popen(
        [os.fspath(word) for word in (*TOOL, *words)],
        stdin=slave, stdout=slave, stderr=slave, env=environment(TERM="xterm"),
    )  # fmt: skip
    os.close(slave)
    shown = b""
    try:
        while True:
            try:
                chunk = os.read(master, 1 << 16)
            except OSError:  # EIO: nobody holds the other end any more
                break
            shown += chunk
    finally:
        os.close(master)
    return child.wait(DEADLINE), shown.decode()


def open_descriptors():
    return set(os.listdir("/proc/self/fd"))


def mappings_of(path):
    """How many mappings of a file this process has, and the protections they have."""
    with open("/proc/self/maps") as maps:
        return [line.split()[1] for line in maps if line.rstrip("\n").endswith(f" {path}")]


def bytes_of(array):
    """The bytes of a NumPy array or a PyTorch tensor."""
    if isinstance(array, numpy.ndarray):
        return array.tobytes()
    if array.numel() == 0:
        return b""
    import torch

    return array.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def write_holes(path, nbytes):
    """A tensor "w" that takes a while to load and no room on the disk."""
    header = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (nbytes, nbytes)
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + nbytes)
    return path


def signal_during_load(mounted, command, number, device="cpu"):
    """Runs a command that loads, signals it while it does. Returns (exit status, stdout, stderr).

    A load may end before the signal comes: then it is unloaded and the command runs again.
    """
    data = mounted / ".devices" / device / "data"
    for _ in range(20):
        child = subprocess.Popen(
            [os.fspath(word) for word in command], env=environment(), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        while child.poll() is None:
            if json.loads((mounted / ".status").read_text())["loads"]:
                child.send_signal(number)
                break
            time.sleep(0.001)
        output, complaint = child.communicate(timeout=DEADLINE)
        loaded = os.listdir(data)
        if not loaded:
            return child.returncode, output, complaint
        for name in loaded:
            os.unlink(data / name)
    raise AssertionError("every load ended before it could be cancelled")

"""What the kernel asks the daemon for, as `-d` prints it."""

import os
import re
import subprocess
from collections import Counter

import daemon
from checkpoints import blob, write
from commands import wait_until


def read(path):
    """As cat does; Python's own open() asks whether a file is a terminal."""
    fd = os.open(path, os.O_RDONLY)
    while os.read(fd, 1 << 20):
        pass
    os.close(fd)


def test_opening_a_tensor_again_costs_one_round_trip_and_no_reading(folder):
    write(folder / "m.safetensors", [blob("t", bytes(100_000))])
    log, mountpoint = folder / "log", folder / "mnt"
    mountpoint.mkdir()

    def requests():
        return Counter(re.findall(r"^unique: \d+, opcode: (\w+)", log.read_text(), re.MULTILINE))

    with open(log, "w") as stderr:
        process = subprocess.Popen(
            [daemon.BINARY, "-d", folder / "m.safetensors", mountpoint], stderr=stderr
        )
    try:
        wait_until(lambda: daemon.mounts_at(mountpoint), "mounted")
        read(mountpoint / "t")
        # RELEASE comes after close(2) has returned: nobody waits for it.
        wait_until(lambda: requests()["RELEASE"] == 1, "closed")
        before = requests()
        read(mountpoint / "t")
        wait_until(lambda: requests()["RELEASE"] == 2, "closed again")
        assert requests() - before == Counter(OPEN=1, RELEASE=1)
    finally:
        daemon.output_of(*daemon.unmounting(mountpoint))
        process.wait(daemon.DEADLINE)

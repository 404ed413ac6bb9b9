"""Configures the simulated CUDA driver beside this file, and reads what it has counted.

    with tempfile.TemporaryDirectory() as folder:
        simulation = Simulation(folder, devices=1, memory=1 << 30)
        subprocess.run(program, env={**os.environ, **simulation.environment()}, check=True)
        assert simulation.counters()["freed_while_imported"] == 0

configuration.h describes the keys and state_file.h the numbers. SIMULATED_CUDA_LIBRARY names the
folder that holds libcuda.so.1.
"""

import contextlib
import dataclasses
import mmap
import os
import re
import struct
import time
from pathlib import Path

MAGIC = 0x31307261646D6973
MAX_DEVICES = 16


@dataclasses.dataclass(frozen=True)
class Process:
    """What a process has, or had when it died."""

    pid: int
    start_ticks: int
    pid_namespace: int
    effective_user: int
    pinned: int
    pinned_peak: int
    imports: int
    poisoned: bool
    allocated: tuple
    context: tuple
    alive: bool


@dataclasses.dataclass(frozen=True)
class Import:
    """An allocation that another process has open."""

    importer_pid: int
    exporter_pid: int
    allocation: int
    bytes: int
    importer_alive: bool
    exporter_alive: bool


def start_ticks(pid):
    """When a process began; None where it has ended, a zombie too."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


class Simulation:
    """A folder that processes share. Processes of other users can, if they can reach it."""

    def __init__(self, folder, **config):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o777)
        self._config = {}
        self.configure(**config)

    def environment(self):
        """What a process needs in its environment."""
        library = os.environ["SIMULATED_CUDA_LIBRARY"]
        others = os.environ.get("LD_LIBRARY_PATH")
        path = f"{library}:{others}" if others and others != library else library
        return {"SIMULATED_CUDA": str(self.folder), "LD_LIBRARY_PATH": path}

    def configure(self, **config):
        """Sets some keys and keeps the others; None takes a key back to its default.

        `memory_1=N` is the key `memory.1`. Processes see it before their next call, and their
        counts for faults begin again.
        """
        for name, value in config.items():
            key = re.sub(r"_(\d+)$", r".\1", name)
            if value is None:
                self._config.pop(key, None)
            else:
                self._config[key] = int(value) if isinstance(value, bool) else value
        temporary = self.folder / "config.new"
        temporary.write_text("".join(f"{key}={value}\n" for key, value in self._config.items()))
        temporary.chmod(0o644)
        temporary.replace(self.folder / "config")
        with contextlib.suppress(FileNotFoundError, ValueError):  # no process has looked yet
            with open(self.folder / "state", "r+b") as file, mmap.mmap(file.fileno(), 0) as state:
                struct.pack_into("Q", state, 9 * 8, time.monotonic_ns())

    def counters(self):
        """All counts by name; calls of a function as `call.cuMemAlloc_v2`."""
        state = self._read()
        if state is None:
            return _Counts()
        _, offset, used = struct.unpack_from("3Q", state)
        records = struct.iter_unpack("40sQ", state[offset : offset + 48 * used])
        return _Counts((name.rstrip(b"\0").decode(), value) for name, value in records)

    def processes(self):
        """Every process that has called cuInit, in that order."""
        return list(self._processes())

    def process(self, pid):
        """The latest entry of that process number."""
        return [entry for entry in self.processes() if entry.pid == pid][-1]

    def imports(self):
        state = self._read()
        if state is None:
            return []
        offset, record_bytes, used = struct.unpack_from("3Q", state, 6 * 8)
        found = []
        for i in range(used):
            importer, importer_start, exporter, exporter_start, allocation, size = (
                struct.unpack_from("6Q", state, offset + i * record_bytes)
            )
            if importer != 0:
                alive = start_ticks(importer) == importer_start
                exporter_alive = start_ticks(exporter) == exporter_start
                found.append(Import(importer, exporter, allocation, size, alive, exporter_alive))
        return found

    def allocated_bytes(self, device=0):
        """What living processes have allocated on a device."""
        return sum(entry.allocated[device] for entry in self.processes() if entry.alive)

    def context_bytes(self, device=0):
        return sum(entry.context[device] for entry in self.processes() if entry.alive)

    def used_bytes(self, device=0):
        """Allocations and contexts."""
        return self.allocated_bytes(device) + self.context_bytes(device)

    def pinned_bytes(self):
        return sum(entry.pinned for entry in self.processes() if entry.alive)

    def wait_for(self, condition, seconds=10):
        """Waits until `condition(self)` holds; what it returned."""
        deadline = time.monotonic() + seconds
        while not (result := condition(self)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {seconds} s; {self.counters().nonzero()}")
            time.sleep(0.002)
        return result

    def _read(self):
        try:
            with open(self.folder / "state", "rb") as file:
                mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (FileNotFoundError, ValueError):  # not made, or not grown yet
            return None
        return mapping if struct.unpack_from("Q", mapping)[0] == MAGIC else None

    def _processes(self):
        state = self._read()
        if state is None:
            return
        offset, record_bytes, used = struct.unpack_from("3Q", state, 3 * 8)
        for i in range(used):
            words = struct.unpack_from(f"{8 + 2 * MAX_DEVICES}Q", state, offset + i * record_bytes)
            own, allocated, context = words[:8], words[8 : 8 + MAX_DEVICES], words[-MAX_DEVICES:]
            alive = start_ticks(own[0]) == own[1]
            yield Process(*own[:7], bool(own[7]), allocated, context, alive)


class _Counts(dict):
    """0 for what has not been counted, so that a test may ask before any process has started."""

    def __missing__(self, name):
        return 0

    def nonzero(self):
        return {name: value for name, value in self.items() if value}

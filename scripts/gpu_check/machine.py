"""Where a check runs, and the models that it loads, each made when it is first needed."""

import contextlib
import os
import shutil
from functools import cached_property
from pathlib import Path

import models
from programs import Context, Session, python_lines
from table import Skip

# Memory that a driver may keep for itself; whatever is loaded here is larger.
TOLERANCE = 16 << 20


class Machine:
    def __init__(self, arguments, folder, device, total_nbytes):
        self.program = arguments.program
        self.quick = arguments.quick
        self.gigabytes = arguments.gigabytes
        self.folder = Path(folder)
        self.device = device
        self.ordinal = int(device.partition(":")[2])
        self.total_nbytes = total_nbytes
        self.cpus = sorted(os.sched_getaffinity(0))
        self.ceiling = None  # bytes per second of copies from pinned memory
        self.large_rate = None  # of a warm load of the large model
        self._missing = {}  # libraries that cannot be used, and why

    @cached_property
    def large(self):
        return models.write_large(self.folder / "large.safetensors", self._large_nbytes())

    @cached_property
    def gpt2(self):
        sizes = {"layers": 12, "width": 64, "context": 128, "vocabulary": 999} if self.quick else {}
        return models.write_gpt2(self.folder / "gpt2.safetensors", **sizes)

    @cached_property
    def small(self):
        count = 5_000 if self.quick else 100_000
        return models.write_small(self.folder / "small.safetensors", count)

    @cached_property
    def dtypes(self):
        return models.write_dtypes(self.folder / "dtypes.safetensors")

    def session(self, model, cpus=None, idle_milliseconds=60000):
        return Session(self.program, model.path, cpus, idle_milliseconds)

    @contextlib.contextmanager
    def loaded(self, model):
        """A session that has loaded all of a model."""
        with self.session(model) as session:
            session.ask("load", self.device, "*")
            yield session

    def context(self):
        return Context(self.program, self.ordinal)

    def with_library(self, library, script, *arguments, **keywords):
        """The answer of a script that needs a library, which is looked for until it is missed."""
        if library in self._missing:
            raise Skip(self._missing[library])
        (answer,) = python_lines(script, *arguments, **keywords)
        if "skipped" in answer:
            self._missing[library] = answer["skipped"]
            raise Skip(answer["skipped"])
        return answer

    def readers(self):
        """Numbers of readers to measure with, and whether there are CPUs for them."""
        counts = [4, 8, 12, 16]
        if len(self.cpus) < counts[0]:
            counts.insert(0, len(self.cpus))
        return [(count, count <= len(self.cpus)) for count in counts]

    def _large_nbytes(self):
        if self.gigabytes:
            return int(self.gigabytes * 1e9)
        if self.quick:
            return 150_000_000
        # Each of these holds the whole of it.
        disk = shutil.disk_usage(self.folder).free
        return int(min(6e9, 0.4 * self.total_nbytes, 0.4 * available_memory(), 0.4 * disk))


def available_memory():
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable")


def file_system_of(path):
    """The type of the file system that a path is on, as the kernel names it."""
    path, best = str(Path(path).resolve()), ("", "")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        prefix = place if place.endswith("/") else place + "/"
        if (path + "/").startswith(prefix) and len(place) >= len(best[0]):
            best = place, kind
    return best[1]


def choose_folder(wanted_nbytes):
    """A folder on a disk with room, since what is in memory only cannot be read cold."""
    candidates = [os.environ.get("TMPDIR"), "/tmp", "/var/tmp", os.getcwd(), "/dev/shm"]
    folders = [folder for folder in candidates if folder and os.access(folder, os.W_OK)]

    def rank(folder):
        has_room = shutil.disk_usage(folder).free >= wanted_nbytes
        return has_room, file_system_of(folder) != "tmpfs"

    return max(folders, key=rank)

"""Reading a model's tensors: native files, the least FUSE server there can be, and safetensorfs."""

import contextlib
import hashlib
import os
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from .files import extract, offsets, write_random
from .gpt2 import LARGEST, gpt2_sizes
from .mount import Mount, Server
from .programs import Reads, build_minimal_server
from .report import Goal, Report
from .rounds import cat_all, drop_caches, interleave, run_timed, warm, why_caches_stay

HELP = "read tensors, beside native files and the smallest possible FUSE server"
ROUNDS = 21

NATIVE, OURS = "native", "safetensorfs"
MINIMAL = "FUSE, splice", "FUSE, mapping"
MIB, KIB128 = 1 << 20, 128 << 10
READERS = 1, 2, 4, 8


def add_arguments(parser):
    parser.add_argument("--megabytes", type=int, default=600,
                        help="of the model, 548 at most, of which the largest tensor is 28%% "
                        "(default: %(default)s)")
    parser.add_argument("--count", type=int, default=20_000, metavar="N",
                        help="random reads, and opens, in a round (default: %(default)s)")


@dataclass
class Way:
    """A way to the bytes of the largest tensor, and to a folder of all."""

    mount: Callable  # makes a context, in which the paths are there
    path: Path
    offset: int  # of the tensor's bytes in path
    folder: Path


def ways_to(source, natives, mountpoint, binary):
    offset, nbytes = offsets(source)[LARGEST]
    server = build_minimal_server(binary)

    def minimal(mode):
        command = [server, mode, source, offset, nbytes, LARGEST, mountpoint]
        return Way(lambda: Server(command, mountpoint), mountpoint / LARGEST, 0, mountpoint)

    return {
        NATIVE: Way(contextlib.nullcontext, source, offset, natives),
        MINIMAL[0]: minimal("splice"),
        MINIMAL[1]: minimal("mapping"),
        OURS: Way(lambda: Mount(binary, source, mountpoint), mountpoint / LARGEST, 0, mountpoint),
    }


def check_bytes(ways, nbytes):
    """Nothing is worth measuring that reads something else."""
    digests = set()
    for way in ways.values():
        with way.mount(), open(way.path, "rb") as file:
            file.seek(way.offset)
            digest = hashlib.sha256()
            left = nbytes
            while left > 0:
                block = file.read(min(left, MIB))
                if not block:
                    sys.exit(f"bench: {way.path} ends {left} bytes early")
                digest.update(block)
                left -= len(block)
            digests.add(digest.hexdigest())
    if len(digests) != 1:
        sys.exit("bench: the bytes read are not the same")


@contextlib.contextmanager
def on_cpus(cpus):
    """Keeps what is started to these CPUs; None: all."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def microseconds(values):
    values = sorted(values)
    return {"p50": 1e6 * statistics.median(values), "p99": 1e6 * values[len(values) * 99 // 100]}


class Actions:
    """What is timed, each on a fresh mount."""

    def __init__(self, ways, nbytes, reads, count):
        self._ways, self._nbytes, self._reads, self._count = ways, nbytes, reads, count
        self._warm()

    def _warm(self):
        """Everything that is read, into the page cache, and every program that reads it."""
        native = self._ways[NATIVE]
        for path in native.path, *native.folder.iterdir():
            warm(path)
        for way in self._ways.values():
            with way.mount():
                for words in ("ls", "-l"), ("find",), ("du",), ("cat", "/dev/null"):
                    run_timed(*words, folder=way.folder)

    def of(self, measure, names=None, is_cold=False, cpus=None):
        """{way: function}; cpus: those that the server and its reader may use."""
        def function(way):
            def call():
                if is_cold:
                    drop_caches()
                with on_cpus(cpus), way.mount():
                    result = measure(way)
                if is_cold:
                    self._warm()
                return result
            return call
        return {name: function(self._ways[name]) for name in names or self._ways}

    def twice(self, block):
        """Dicts of GB/s; the second read finds the kernel's cache filled, as do two more."""
        def measure(way):
            speeds = [self.speed(way, block) for _ in range(4)]
            return {"first": speeds[0], "second": statistics.median(speeds[1:])}
        return self.of(measure)

    def speed(self, way, block, **options):
        seconds = self._reads.sequential(way.path, way.offset, self._nbytes, block, **options)
        return self._nbytes / seconds / 1e9

    def direct(self, way):
        # Native files have no O_DIRECT at a tensor's offset, and no cache to bypass here.
        return self.speed(way, MIB, is_direct=way is not self._ways[NATIVE])

    def touch(self, way):
        return self._nbytes / self._reads.touch(way.path, way.offset, self._nbytes) / 1e9

    def random(self, way):
        return microseconds(self._reads.random(way.path, way.offset, self._nbytes, self._count))

    def open(self, way):
        return microseconds(self._reads.open(way.path, self._count))["p50"]

    def all(self):
        folders = [NATIVE, OURS]  # the smallest server has one file
        one_cpu = {max(os.sched_getaffinity(0))}
        timed = lambda *words: lambda way: 1e3 * run_timed(*words, folder=way.folder)
        actions = {
            "1 MiB": self.twice(MIB),
            "128 KiB": self.twice(KIB128),
            "direct": self.of(self.direct),
            "direct, one CPU": self.of(self.direct, cpus=one_cpu),
            "touch": self.of(self.touch),
            "random": self.of(self.random),
            "random, one CPU": self.of(self.random, cpus=one_cpu),
            "open": self.of(self.open),
            "cat": self.of(lambda way: 1e3 * cat_all(way.folder), folders),
            "ls -l": self.of(timed("ls", "-l"), folders),
            "find": self.of(timed("find"), folders),
            "du": self.of(timed("du"), folders),
        }
        for readers in READERS[1:]:
            actions[f"{readers} readers"] = self.of(
                lambda way, readers=readers: self.speed(way, MIB, readers=readers))
        if not why_caches_stay():
            actions["cold"] = self.of(lambda way: self.speed(way, MIB), is_cold=True)
        return actions


@dataclass
class Line:
    """A row: what it is called, a Series for each way, and whether more is better."""

    key: str
    label: str
    unit: str
    values: dict
    is_speed: bool

    def best_minimal(self):
        names = [name for name in MINIMAL if name in self.values]
        if not names:
            return None
        best = max if self.is_speed else min
        return self.values[best(names, key=lambda name: self.values[name].median)]

    def share(self, base):
        """Of the speed of `base`: 1 is as fast, less is slower."""
        ours = self.values[OURS]
        return ours / base if self.is_speed else base / ours


def lines_of(series):
    def part(action, key):
        return {way: of[key] for way, of in series[action].items()}

    lines = []
    for block in "1 MiB", "128 KiB":
        for key in "first", "second":
            lines.append(Line(f"{key} {block}", f"{key} read, {block}", "GB/s", part(block, key),
                              True))
    speeds = [("direct", "`O_DIRECT`, 1 MiB"), ("direct, one CPU", "`O_DIRECT`, 1 MiB, one CPU"),
              ("touch", "`mmap`, first touch of each page")]
    speeds += [(f"{n} readers", f"first read, 1 MiB, {n} readers") for n in READERS[1:]]
    if "cold" in series:
        speeds.append(("cold", "first read, 1 MiB, nothing in the page cache"))
    lines += [Line(key, label, "GB/s", series[key], True) for key, label in speeds]
    lines += [Line(f"{action} {key}", f"4 KiB at random{action.removeprefix('random')}, {key}",
                   "us", part(action, key), False)
              for action in ("random", "random, one CPU") for key in ("p50", "p99")]
    lines.append(Line("open", "open and close", "us", series["open"], False))
    for key, label in (("cat", "`cat *` of 160 tensors"), ("ls -l", "`ls -l`"), ("find", "`find`"),
                       ("du", "`du`")):
        lines.append(Line(key, label, "ms", series[key], False))
    return lines


def goals_of(lines):
    goals = []
    for key in "first 1 MiB", "second 1 MiB", "first 128 KiB", "second 128 KiB", "direct, one CPU":
        line = lines[key]
        goals.append(Goal(f"{line.label}, share of the smallest FUSE server",
                          line.share(line.best_minimal()), at_least=0.95))
    if "cold" in lines:
        goals.append(Goal("cold read, share of a native one",
                          lines["cold"].share(lines["cold"].values[NATIVE]), at_least=0.95))
    random = lines["random, one CPU p50"]
    goals.append(Goal(f"{random.label}, us more than the smallest FUSE server",
                      random.values[OURS] - random.best_minimal(), at_most=1))
    return goals


def run(arguments, folder):
    source, natives = folder / "model.safetensors", folder / "native"
    write_random(source, gpt2_sizes(arguments.megabytes))
    extract(source, natives)
    nbytes = offsets(source)[LARGEST][1]
    ways = ways_to(source, natives, folder / "mnt", arguments.binary)
    check_bytes(ways, nbytes)
    actions = Actions(ways, nbytes, Reads(folder), arguments.count).all()
    lines = lines_of(interleave(actions, arguments.rounds))
    rows, measurements = [], {"nbytes": nbytes, "model_nbytes": source.stat().st_size}
    for line in lines:
        digits = 2 if line.is_speed else 1
        shares = {"share_of_native": line.share(line.values[NATIVE])}
        if line.best_minimal():
            shares["share_of_minimal"] = line.share(line.best_minimal())
        cell = lambda name: line.values[name].format(digits) if name in line.values else ""
        rows.append([f"{line.label}, {line.unit}", *map(cell, (NATIVE, *MINIMAL, OURS)),
                     *(shares[key].format(2) if key in shares else ""
                       for key in ("share_of_native", "share_of_minimal"))])
        measurements[line.key] = {"label": line.label, "unit": line.unit, **line.values, **shares}
    why = why_caches_stay()
    return Report(
        title=f"Read tensors of a model of {source.stat().st_size / 1e6:.0f} MB",
        columns=["what", "native file", "smallest FUSE server, splice", "the same, mapping",
                 "safetensorfs", "share of native", "share of the smallest server's best"],
        rows=rows,
        goals=goals_of({line.key: line for line in lines}),
        notes=[
            f"median of {arguments.rounds} interleaved rounds (min-max), shares round by round; a "
            f"tensor of {nbytes / 1e6:.0f} MB, source in the page cache, each row on a fresh mount",
            "smallest FUSE server: scripts/benchmarks/minimal_server.cc, one file, the mount "
            "options and timeouts of safetensorfs, but the kernel's own read-ahead of 128 KiB",
            "native: the source itself, buffered in the row of `O_DIRECT` too; in the last four "
            "rows a folder of 160 files",
            f"4 KiB at random: {arguments.count} places that have not been read",
            "one CPU: the server and its reader share it, so that neither is woken up on another, "
            "which takes longer here than what servers differ in",
            "second read: the median of three",
            *([f"skipped: with nothing in the page cache: {why}"] if why else []),
        ],
        measurements=measurements)

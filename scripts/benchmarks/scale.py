"""Mounting, listing and looking up as the number of tensors grows, and as that of files does."""

import os
import random
import statistics
import subprocess
import sys
import time

from .files import LONGEST_NAMED, tensor_names, write_many_tensors
from .mount import Mount
from .programs import Reads
from .report import Goal, Report, Series
from .rounds import run_timed

HELP = "mount, list and look up many tensors, beside safe_open(f).keys(); many checkpoints"

# Its own process, since a second parse in one process reuses memory; the imports are not timed.
KEYS = """
import sys, time, numpy
from safetensors import safe_open
begin = time.perf_counter()
with safe_open(sys.argv[1], "np") as file:
    count = len(list(file.keys()))
print(count, time.perf_counter() - begin)
"""
LOOKUPS = 2000
# From here on the goals hold: below, everything takes milliseconds.
MANY = 100_000
MEMORY_BYTES, MEMORY_BYTES_PER_TENSOR = 8_000_000, 200


def add_arguments(parser):
    parser.add_argument("--tensors", type=int, nargs="+", default=[160, 222747, 600000, 1290000],
                        metavar="N", help="default: %(default)s")
    parser.add_argument("--checkpoints", type=int, default=1000, metavar="N",
                        help="files in one folder (default: %(default)s)")


def measure_keys(path, count):
    begin = time.perf_counter()
    output = subprocess.run([sys.executable, "-c", KEYS, path], check=True, text=True,
                            stdout=subprocess.PIPE).stdout.split()
    process = time.perf_counter() - begin
    if int(output[0]) != count:
        sys.exit(f"bench: safe_open lists {output[0]} tensors, not {count}")
    return {"keys": float(output[1]), "keys_process": process}


def count_listed(mountpoint):
    names = subprocess.run(["ls", "-f", mountpoint], check=True, stdout=subprocess.PIPE,
                           env={**os.environ, "LC_ALL": "C"}).stdout.split(b"\n")
    return sum(1 for name in names if name and not name.startswith(b"."))


def measure_mount(binary, path, count, mountpoint, reads, names):
    with Mount(binary, path, mountpoint) as mount:
        seconds = run_timed("ls", "-f", mountpoint)
        rss, anonymous = mount.resident_bytes()
        lookup = statistics.median(reads.stat(mountpoint, names)) if names else 0.0
        return {"mount": mount.seconds, "ls": seconds, "mount_and_ls": mount.seconds + seconds,
                "rss": rss, "rss_anonymous": anonymous, "lookup": lookup,
                "ls_l": run_timed("ls", "-l", mountpoint)}


def check_listing(binary, path, count, mountpoint):
    with Mount(binary, path, mountpoint):
        listed = count_listed(mountpoint)
    if listed != count:
        sys.exit(f"bench: ls lists {listed} tensors, not {count}")


def some_names(count):
    """Of all, in no order."""
    chosen = random.Random(1).sample(range(count), min(count, LOOKUPS))
    wanted = {number: place for place, number in enumerate(chosen)}
    found = [None] * len(chosen)
    for number, name in enumerate(tensor_names(count)):
        if number in wanted:
            found[wanted[number]] = name
    return found


def measure_counts(arguments, folder, reads):
    """{count: {what: Series}}"""
    # No tensors at all: what the program itself takes, to be taken off before dividing.
    counts = [0, *arguments.tensors]
    paths = {count: folder / f"{count}.safetensors" for count in counts}
    headers = {count: write_many_tensors(paths[count], count) for count in counts}
    names = {count: some_names(count) for count in counts}
    for count in counts:
        check_listing(arguments.binary, paths[count], count, folder / "mnt")
    rounds = {count: [] for count in counts}
    for number in range(arguments.rounds):
        for count in counts:
            steps = [lambda: measure_keys(paths[count], count),
                     lambda: measure_mount(arguments.binary, paths[count], count, folder / "mnt",
                                           reads, names[count])]
            if number % 2:
                steps.reverse()
            rounds[count].append({key: value for step in steps for key, value in step().items()})

    measurements = {}
    for count in counts:
        series = {key: Series([values[key] for values in rounds[count]])
                  for key in rounds[count][0]}
        series["ratio"] = series["mount_and_ls"] / series["keys"]
        series["times_keys"] = series["keys"] / series["mount_and_ls"]
        measurements[count] = {"header_bytes": headers[count], **series}
    return measurements


def measure_folder(arguments, folder):
    """{what: Series} of a folder of many small checkpoints of 160 tensors."""
    source, mountpoint = folder / "checkpoints", folder / "mnt"
    source.mkdir()
    for number in range(arguments.checkpoints):
        write_many_tensors(source / f"step-{number:06}.safetensors", 160)
    rounds = []
    for _ in range(arguments.rounds):
        with Mount(arguments.binary, source, mountpoint) as mount:
            find = run_timed("find", mountpoint)
            rss, anonymous = mount.resident_bytes()
            rounds.append({"mount": mount.seconds, "find": find, "rss": rss,
                           "rss_anonymous": anonymous})
    return {key: Series([values[key] for values in rounds]) for key in rounds[0]}


def goals_of(measurements):
    goals = []
    for count, of in measurements.items():
        if count >= MANY:
            goals.append(Goal(f"{count:,} tensors, mount and `ls -f` complete, times faster than "
                              "keys()", of["times_keys"], at_least=2))
        if count > 0:
            limit = MEMORY_BYTES + MEMORY_BYTES_PER_TENSOR * count
            goals.append(Goal(f"{count:,} tensors, VmRSS of the daemon, MB",
                              of["rss"].scaled(1e-6), at_most=limit / 1e6, digits=1))
    return goals


def run(arguments, folder):
    measurements = measure_counts(arguments, folder, Reads(folder))
    base = measurements[0]["rss_anonymous"].median
    rows = []
    for count in arguments.tensors:
        of = measurements[count]
        of["bytes_per_tensor"] = (of["rss_anonymous"].median - base) / count
        rows.append([
            f"{count:,}", f"{of['header_bytes'] / 1e6:.2f}",
            of["mount"].format(3), of["ls"].format(3), of["mount_and_ls"].format(3),
            of["keys"].format(4), of["ratio"].format(2), of["keys_process"].format(3),
            f"{of['rss'].median / 2**20:.1f}", f"{of['rss_anonymous'].median / 2**20:.1f}",
            f"{of['bytes_per_tensor']:.0f}" if count >= MANY else "", of["lookup"].scaled(1e6).format(1),
            of["ls_l"].format(3),
        ])
    goals = goals_of(measurements)
    notes = [
        f"median of {arguments.rounds} interleaved rounds (min-max), source in the page cache",
        "keys(): safe_open(f, \"np\").keys() in a fresh process, without interpreter start and "
        "imports (keys() process: with them); mount: the whole program until it returns",
        f"memory of the daemon after `ls -f`; bytes per tensor: RssAnon less that of a "
        f"mount of no tensors ({base / 2**20:.1f} MiB)",
        f"above {LONGEST_NAMED:,} tensors names are short, so that the header is under 100 MB",
        f"lookup: stat of {LOOKUPS} names at random that the kernel does not have, median",
    ]
    if arguments.checkpoints > 0:
        of = measure_folder(arguments, folder)
        measurements["folder"] = {"checkpoints": arguments.checkpoints, **of}
        notes.append(
            f"a folder of {arguments.checkpoints:,} checkpoints of 160 tensors: mount "
            f"{of['mount'].format(3)} s, `find` {of['find'].format(3)} s, VmRSS "
            f"{of['rss'].median / 2**20:.1f} MiB, RssAnon {of['rss_anonymous'].median / 2**20:.1f} "
            "MiB")
    return Report(
        title="Mount and list",
        columns=["tensors", "header MB", "mount s", "ls -f s", "mount + ls s", "keys() s",
                 "mount + ls / keys()", "keys() process s", "VmRSS MiB", "RssAnon MiB",
                 "bytes per tensor", "lookup us", "ls -l s"],
        rows=rows,
        goals=goals,
        notes=notes,
        measurements=measurements)

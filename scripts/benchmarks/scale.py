"""Mounting and listing as the number of tensors grows, beside safe_open(f).keys()."""

import os
import subprocess
import sys
import time

from .files import write_many_tensors
from .mount import Mount
from .report import Report, Series

HELP = "mount and list many tensors, beside safe_open(f).keys()"

# Its own process, since a second parse in one process reuses memory; the imports are not timed.
KEYS = """
import sys, time, numpy
from safetensors import safe_open
begin = time.perf_counter()
with safe_open(sys.argv[1], "np") as file:
    count = len(list(file.keys()))
print(count, time.perf_counter() - begin)
"""


def add_arguments(parser):
    parser.add_argument("--tensors", type=int, nargs="+", default=[160, 222747, 600000],
                        metavar="N", help="default: %(default)s")


def measure_keys(path, count):
    begin = time.perf_counter()
    output = subprocess.run([sys.executable, "-c", KEYS, path], check=True, text=True,
                            stdout=subprocess.PIPE).stdout.split()
    process = time.perf_counter() - begin
    if int(output[0]) != count:
        sys.exit(f"bench: safe_open lists {output[0]} tensors, not {count}")
    return {"keys": float(output[1]), "keys_process": process}


def measure_mount(binary, path, count, mountpoint):
    with Mount(binary, path, mountpoint) as mount:
        begin = time.perf_counter()
        names = subprocess.run(["ls", "-f", mountpoint], check=True, stdout=subprocess.PIPE,
                               env={**os.environ, "LC_ALL": "C"}).stdout.split(b"\n")
        seconds = time.perf_counter() - begin
        listed = sum(1 for name in names if name and not name.startswith(b"."))
        if listed != count:
            sys.exit(f"bench: ls lists {listed} tensors, not {count}")
        rss, anonymous = mount.resident_bytes()
        return {"mount": mount.seconds, "ls": seconds, "mount_and_ls": mount.seconds + seconds,
                "rss": rss, "rss_anonymous": anonymous}


def run(arguments, folder):
    # No tensors at all: what the program itself takes, to be taken off before dividing.
    counts = [0, *arguments.tensors]
    paths = {count: folder / f"{count}.safetensors" for count in counts}
    headers = {count: write_many_tensors(paths[count], count) for count in counts}

    rounds = {count: [] for count in counts}
    for number in range(arguments.rounds):
        for count in counts:
            steps = [lambda: measure_keys(paths[count], count),
                     lambda: measure_mount(arguments.binary, paths[count], count, folder / "mnt")]
            if number % 2:
                steps.reverse()
            rounds[count].append({key: value for step in steps for key, value in step().items()})

    measurements = {}
    for count in counts:
        series = {key: Series([values[key] for values in rounds[count]])
                  for key in rounds[count][0]}
        series["ratio"] = series["mount_and_ls"] / series["keys"]
        measurements[count] = {"header_bytes": headers[count], **series}
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
            f"{of['bytes_per_tensor']:.0f}",
        ])
    return Report(
        title="Mount and list",
        columns=["tensors", "header MB", "mount s", "ls -f s", "mount + ls s", "keys() s",
                 "mount + ls / keys()", "keys() process s", "VmRSS MiB", "RssAnon MiB", "bytes per tensor"],
        rows=rows,
        notes=[
            f"median of {arguments.rounds} interleaved rounds (min-max), source in the page cache",
            "keys(): safe_open(f, \"np\").keys() in a fresh process, without interpreter start and "
            "imports (keys() process: with them); mount: the whole program until it returns",
            f"memory of the daemon after the listing; bytes per tensor: RssAnon less that of a "
            f"mount of no tensors ({base / 2**20:.1f} MiB)",
        ],
        measurements=measurements)

"""The same tensors through what else mounts a file as a folder, with nothing compressed."""

import contextlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import Callable

from .files import extract, offsets, write_random
from .gpt2 import LARGEST, gpt2_sizes
from .mount import Mount, Server, ServerError
from .programs import TOP, Reads
from .report import Goal, Report
from .rounds import cat_all, interleave, run_timed, warm

HELP = "read the same tensors through squashfuse, fuse-zip, archivemount and ratarmount"

NATIVE, OURS = "native files", "safetensorfs"
RATARMOUNT = TOP / "build/venv-bench/bin/ratarmount"
BLOCK = 1 << 20


@dataclass
class Peer:
    name: str
    programs: list  # what must be there
    image: str
    make: Callable  # (folder of files, image) -> command that makes it, in that folder
    mount: Callable  # (image, mountpoint) -> command, in the foreground


def tar(files, image):
    return ["tar", "--format=gnu", "-cf", image, *files]


PEERS = [
    Peer("squashfuse", ["squashfuse", "mksquashfs"], "sqsh",
         lambda files, image: ["mksquashfs", ".", image, "-noI", "-noD", "-noF", "-noX",
                               "-no-progress"],
         lambda image, mountpoint: ["squashfuse", "-f", image, mountpoint]),
    Peer("squashfuse_ll", ["squashfuse_ll", "mksquashfs"], "sqsh",
         lambda files, image: ["mksquashfs", ".", image, "-noI", "-noD", "-noF", "-noX",
                               "-no-progress"],
         lambda image, mountpoint: ["squashfuse_ll", "-f", image, mountpoint]),
    Peer("fuse-zip", ["fuse-zip", "zip"], "zip",
         lambda files, image: ["zip", "-q", "-0", image, *files],
         lambda image, mountpoint: ["fuse-zip", "-r", "-f", image, mountpoint]),
    Peer("archivemount", ["archivemount", "tar"], "tar", tar,
         lambda image, mountpoint: ["archivemount", "-f", "-o", "readonly", image, mountpoint]),
    Peer("ratarmount", [str(RATARMOUNT), "tar"], "tar", tar,
         lambda image, mountpoint: [RATARMOUNT, "-f", image, mountpoint]),
]


def add_arguments(parser):
    parser.add_argument("--megabytes", type=int, default=600,
                        help="of the model, 548 at most (default: %(default)s)")
    names = [peer.name for peer in PEERS]
    parser.add_argument("--peers", nargs="+", choices=names, default=names, metavar="NAME",
                        help="some of: " + " ".join(names))
    parser.add_argument("--no-install", action="store_true",
                        help="measure those that are there; install nothing")


def install():
    """What cannot be installed is left out later."""
    subprocess.run([TOP / "scripts/install_packages.sh", "peers"])


class Mounting:
    """How a peer is mounted."""

    def __init__(self, peer, image, mountpoint):
        self._command = peer.mount(image, mountpoint)
        self._mountpoint = mountpoint
        self.files = [image]

    def __call__(self):
        return Server(self._command, self._mountpoint)


def find_peers(chosen, natives, folder, mountpoint):
    """{name: Mounting} of those that mount and show the files, and why the others are left out."""
    names = sorted(os.listdir(natives))
    sizes = {name: (natives / name).stat().st_size for name in names}
    mountings, left_out = {}, []
    for peer in chosen:
        missing = [program for program in peer.programs if not shutil.which(program)]
        if missing:
            left_out.append(f"{peer.name} is left out: no {missing[0]}, it could not be installed")
            continue
        image = folder / f"model.{peer.image}"
        if not image.exists():
            subprocess.run(peer.make(names, image), cwd=natives, check=True,
                           stdout=subprocess.DEVNULL)
        mounting = Mounting(peer, image, mountpoint)
        try:
            with mounting():
                shown = {entry.name: entry.stat().st_size for entry in os.scandir(mountpoint)}
        except (ServerError, OSError) as error:
            left_out.append(f"{peer.name} is left out: {error}")
            continue
        if shown != sizes:
            left_out.append(f"{peer.name} is left out: it does not show the same files")
            continue
        mountings[peer.name] = mounting
    return mountings, left_out


def measure(mounting, files, folder, nbytes, reads):
    """Of one fresh mount: GB/s of a first and a second read; of another: ms to read all."""
    # A slow peer takes so long that the kernel may have let go of what was not read meanwhile.
    for path in files:
        warm(path)
    with mounting():
        speeds = [nbytes / reads.sequential(folder / LARGEST, 0, nbytes, BLOCK) / 1e9
                  for _ in range(2)]
        listing = 1e3 * run_timed("ls", "-l", folder=folder)
    with mounting():
        everything = cat_all(folder)
    return {"first": speeds[0], "second": speeds[1], "cat": 1e3 * everything, "ls -l": listing}


def versions():
    """{package: version} of the peers that are installed."""
    found = {}
    for name in "squashfuse", "fuse-zip", "archivemount":
        result = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", name],
                                capture_output=True, text=True)
        if result.returncode == 0 and result.stdout:
            found[name] = result.stdout
    if RATARMOUNT.exists():
        result = subprocess.run([RATARMOUNT.with_name("python"), "-c",
                                 "import importlib.metadata as m; print(m.version('ratarmount'))"],
                                capture_output=True, text=True)
        found["ratarmount"] = result.stdout.strip()
    return found


QUANTITIES = {"first": ("first read, GB/s", True), "second": ("second read, GB/s", True),
              "cat": ("`cat *` on a fresh mount, ms", False), "ls -l": ("`ls -l`, ms", False)}
GOALS = {"first": 1.7, "second": 1.15, "cat": 1.5}


def times_faster(ours, other, is_speed):
    return ours / other if is_speed else other / ours


def goals_of(series, peers):
    goals = []
    for key, target in GOALS.items():
        label, is_speed = QUANTITIES[key]
        best = (max if is_speed else min)(peers, key=lambda name: series[name][key].median)
        goals.append(Goal(f"{label.rpartition(',')[0]}, times the best peer ({best})",
                          times_faster(series[OURS][key], series[best][key], is_speed),
                          at_least=target))
    return goals


def run(arguments, folder):
    if not arguments.no_install:
        install()
    source, natives, mountpoint = (folder / name for name in ("model.safetensors", "native", "mnt"))
    write_random(source, gpt2_sizes(arguments.megabytes))
    extract(source, natives)
    nbytes = offsets(source)[LARGEST][1]
    chosen = [peer for peer in PEERS if peer.name in arguments.peers]
    peers, left_out = find_peers(chosen, natives, folder, mountpoint)

    ours = lambda: Mount(arguments.binary, source, mountpoint)
    ways = {NATIVE: lambda: measure(contextlib.nullcontext, list(natives.iterdir()), natives,
                                    nbytes, reads),
            OURS: lambda: measure(ours, [source], mountpoint, nbytes, reads)}
    for name, mounting in peers.items():
        ways[name] = lambda mounting=mounting: measure(mounting, mounting.files, mountpoint,
                                                       nbytes, reads)
    reads = Reads(folder)
    series = interleave({"peers": ways}, arguments.rounds)["peers"]

    rows, measurements = [], {"nbytes": nbytes, "versions": versions()}
    for name, of in series.items():
        row = [name]
        times = {}
        for key, (_, is_speed) in QUANTITIES.items():
            times[key] = times_faster(series[OURS][key], of[key], is_speed)
            digits = 2 if is_speed else 1
            row += [of[key].format(digits), "" if name == OURS else times[key].format(2)]
        rows.append(row)
        native = {key: times_faster(of[key], series[NATIVE][key], is_speed)
                  for key, (_, is_speed) in QUANTITIES.items()}
        measurements[name] = {**of, "times": times, "share_of_native": native}
    columns = ["what"]
    for label, _ in QUANTITIES.values():
        columns += [label, "safetensorfs is x times as fast"]
    known = ", ".join(f"{name} {version}" for name, version in versions().items())
    return Report(
        title=f"The same 160 tensors, {source.stat().st_size / 1e6:.0f} MB, through other mounts",
        columns=columns,
        rows=rows,
        goals=goals_of(series, peers) if peers else [],
        notes=[
            f"median of {arguments.rounds} interleaved rounds (min-max), ratios round by round; a "
            f"tensor of {nbytes / 1e6:.0f} MB in blocks of 1 MiB, images in the page cache",
            "images: squashfs, ZIP and tar, nothing compressed",
            *([known] if known else []),
            *left_out,
        ],
        measurements=measurements)

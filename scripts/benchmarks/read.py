"""Reading one large tensor through the mount, beside a native read of the same bytes."""

import hashlib
import mmap
import os
import sys
import time

from .files import write_large_tensor
from .mount import Mount
from .report import Report, Series

HELP = "read a large tensor, beside a native read of the same bytes"

NAME = "model.embed_tokens.weight"
BLOCK = 1 << 20


def add_arguments(parser):
    parser.add_argument("--megabytes", type=int, default=150,
                        help="size of the tensor (default: %(default)s)")


def read_range(path, offset, nbytes, flags=0, digest=None):
    """Reads in blocks of 1 MiB and returns the seconds from open to close."""
    buffer = memoryview(mmap.mmap(-1, BLOCK))  # page-aligned, as O_DIRECT wants it
    begin = time.perf_counter()
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        end = offset + nbytes
        while offset < end:
            block = buffer[:min(BLOCK, end - offset)]
            got = os.preadv(descriptor, [block], offset)
            if got == 0:
                sys.exit(f"bench: {path} ends {end - offset} bytes early")
            if digest:
                digest.update(block[:got])
            offset += got
    finally:
        os.close(descriptor)
    return time.perf_counter() - begin


def sha256(path, offset, nbytes, flags=0):
    digest = hashlib.sha256()
    read_range(path, offset, nbytes, flags, digest)
    return digest.hexdigest()


def run(arguments, folder):
    source, mountpoint = folder / "model.safetensors", folder / "mnt"
    tensor = mountpoint / NAME
    nbytes = arguments.megabytes * 1_000_000
    offset = write_large_tensor(source, NAME, nbytes)

    with Mount(arguments.binary, source, mountpoint):
        expected = sha256(source, offset, nbytes)
        for flags in 0, os.O_DIRECT:
            if sha256(tensor, 0, nbytes, flags) != expected:
                sys.exit("bench: the mount's bytes are not the source's")

    def measure_native():
        return {"native": read_range(source, offset, nbytes)}

    def measure_mount():
        with Mount(arguments.binary, source, mountpoint) as mount:
            first = read_range(tensor, 0, nbytes)
            second = read_range(tensor, 0, nbytes)
            direct = read_range(tensor, 0, nbytes, os.O_DIRECT)
            rss, anonymous = mount.resident_bytes()
        return {"first": first, "second": second, "direct": direct,
                "rss": rss, "rss_anonymous": anonymous}

    rounds = []
    for number in range(arguments.rounds):
        steps = [measure_native, measure_mount]
        if number % 2:
            steps.reverse()
        rounds.append({key: value for step in steps for key, value in step().items()})

    measurements = {key: Series([values[key] for values in rounds]) for key in rounds[0]}
    rows = []
    for key, label in (("native", "native, of the source"), ("first", "mount, first read"),
                       ("second", "mount, second read"), ("direct", "mount, O_DIRECT")):
        speed = Series([nbytes / seconds / 1e9 for seconds in measurements[key].values])
        share = measurements["native"] / measurements[key]
        measurements[f"{key}_share"] = share
        rows.append([label, speed.format(2), share.format(2)])
    return Report(
        title=f"Read a tensor of {arguments.megabytes} MB",
        columns=["read", "GB/s", "share of native"],
        rows=rows,
        notes=[
            f"median of {arguments.rounds} interleaved rounds (min-max), blocks of 1 MiB, source "
            "in the page cache, a fresh mount in each round",
            f"memory of the daemon after the reads: VmRSS {measurements['rss'].median / 2**20:.1f} "
            f"MiB, RssAnon {measurements['rss_anonymous'].median / 2**20:.1f} MiB",
        ],
        measurements=measurements)

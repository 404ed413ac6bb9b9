"""The client's load_file(), beside safetensors.torch.load_file and torch.load."""

import ctypes
import statistics
import sys
import time

import numpy as np

from . import load_file_gpu
from .gpt2 import shapes
from .mount import Mount
from .programs import CLIENT
from .report import Goal, Report
from .rounds import interleave

HELP = "load all tensors of a model in Python, beside safetensors.torch.load_file and torch.load"
ROUNDS = 11

PAGE = 4096

BASE = 'load_file(mount, framework="pt")'
THEIRS = "safetensors.torch.load_file"
PICKLE = "torch.load"
# How many times as fast as torch.load() the documentation of safetensors ("Speed Comparison") has
# its load_file().
PUBLISHED_CPU, PUBLISHED_T4 = 76.6, 2.1


def add_arguments(parser):
    parser.add_argument("--layers", type=int, default=12, metavar="N",
                        help="of a GPT-2, 13 tensors each (default: %(default)s, 548 MB in all)")
    parser.add_argument("--width", type=int, default=768, metavar="N",
                        help="of a GPT-2 (default: %(default)s)")
    parser.add_argument("--calls", type=int, default=10, metavar="N",
                        help="calls of what takes less than 20 ms in a round, of which the median "
                        "counts (default: %(default)s)")


def touch_pages(tensors):
    """Reads a byte of every page, which is when a mapping is paid for."""
    for tensor in tensors.values():
        np.asarray(tensor).reshape(-1).view(np.uint8)[::PAGE].sum()


def seconds_of(load, calls, then=lambda tensors: None):
    """Median seconds of load() and of what is then done with the tensors, which die untimed."""
    seconds = []
    while not seconds or (len(seconds) < calls and seconds[-1] < 0.02):
        ctypes.CDLL(None).malloc_trim(0)  # as in a process that loads once
        begin = time.perf_counter()
        tensors = load()
        then(tensors)
        seconds.append(time.perf_counter() - begin)
        del tensors
    return statistics.median(seconds)


def measure(load, calls):
    """Until load() returns; and, in calls of their own, until every page has been read."""
    # Not of the same calls: reading half a gigabyte leaves nothing of the next call in CPU caches.
    return {"load": seconds_of(load, calls), "load_and_read": seconds_of(load, calls, touch_pages)}


def compare_published(where, published, series, pickle, theirs, ours):
    times = {way: series[pickle] / series[way] for way in (theirs, ours)}
    return (f"times as fast as `{pickle}`: `{theirs}` {published} in the documentation of "
            f"safetensors, on {where}; here {times[theirs].format(1)}, and `{ours}` "
            f"{times[ours].format(1)}")


def run(arguments, folder):
    try:
        import torch
        from safetensors.torch import load_file, save_file
    except ModuleNotFoundError as error:
        sys.exit(f"bench: no module {error.name}: run scripts/install_packages.sh test")
    sys.path.insert(0, str(CLIENT))
    import safetensorfs

    source, pickled, mountpoint = (folder / name for name in ("m.safetensors", "m.pt", "mnt"))
    tensors = {name: torch.randn(shape)
               for name, shape in shapes(arguments.layers, arguments.width)}
    count, nbytes = len(tensors), sum(tensor.nbytes for tensor in tensors.values())
    save_file(tensors, source)
    torch.save(tensors, pickled)
    del tensors

    ways = {
        "load_file(mount)": lambda: safetensorfs.load_file(mountpoint),
        BASE: lambda: safetensorfs.load_file(mountpoint, framework="pt"),
        THEIRS: lambda: load_file(source),
        "torch.load(mmap=True)": lambda: torch.load(pickled, mmap=True),
        PICKLE: lambda: torch.load(pickled),
    }
    with Mount(arguments.binary, source, mountpoint) as mount:
        for load in ways.values():  # imports what it needs, and brings the file into the cache
            touch_pages(load())
        calls = {way: lambda way=way: measure(ways[way], arguments.calls) for way in ways}
        measurements = interleave({"cpu": calls}, arguments.rounds)["cpu"]
        why = load_file_gpu.why_not(mount)
        on_gpu = {} if why else load_file_gpu.measure(mount, source, pickled, arguments.rounds)

    rows = []
    for way, of in measurements.items():
        times = of["load"] / measurements[BASE]["load"]
        rows.append([f"`{way}`", of["load"].scaled(1e3).format(3), times.format(2),
                     of["load_and_read"].scaled(1e3).format(1)])
        of["times"] = times
    rows += [[f"`{way}`", series.scaled(1e3).format(3), "", ""] for way, series in on_gpu.items()]
    return Report(
        title=f"Load {count} tensors, {nbytes / 1e6:.0f} MB, in Python",
        columns=["call", "ms", f"times `{BASE}`", "ms, each page read"],
        rows=rows,
        goals=[Goal(f"{way} on the CPU, times `{BASE}`", measurements[way]["times"],
                    at_least=target, digits=1) for way, target in ((THEIRS, 3), (PICKLE, 300))],
        notes=[
            f"median of {arguments.rounds} interleaved rounds (min-max) in one process, files in "
            "the page cache, everything imported and called once before",
            "each page read: other calls, until a byte of every 4 KiB of the tensors has been read, "
            "which is when pages of a mapping are taken; memory that was freed goes back to the "
            "system before each call",
            compare_published("CPU", PUBLISHED_CPU, {way: of["load"] for way, of in
                                                     measurements.items()}, PICKLE, THEIRS, BASE),
            f"on a GPU: {why}" if why else
            compare_published("a T4", PUBLISHED_T4, on_gpu, load_file_gpu.PICKLE,
                              load_file_gpu.THEIRS, next(iter(on_gpu))),
            f"PyTorch {torch.__version__}",
        ],
        measurements={**measurements, "gpu": on_gpu or why})

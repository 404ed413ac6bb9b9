"""The client's load_file(), beside safetensors.torch.load_file and torch.load."""

import statistics
import sys
import time
from pathlib import Path

import numpy as np

from .mount import Mount
from .report import Report, Series

HELP = "load all tensors of a model in Python, beside safetensors.torch.load_file and torch.load"

CLIENT = Path(__file__).resolve().parent.parent / "client"
PAGE = 4096


def add_arguments(parser):
    parser.add_argument("--layers", type=int, default=12, metavar="N",
                        help="of a GPT-2, 13 tensors each (default: %(default)s, 548 MB in all)")
    parser.add_argument("--calls", type=int, default=10, metavar="N",
                        help="calls of what takes less than 20 ms in a round, of which the median "
                        "counts (default: %(default)s)")


def shapes(layers, width=768, context=1024, vocabulary=50257):
    """Of GPT-2 as it is published: 160 tensors with 12 layers."""
    yield "wte.weight", (vocabulary, width)
    yield "wpe.weight", (context, width)
    for layer in range(layers):
        for name, shape in (
            ("ln_1.weight", (width,)), ("ln_1.bias", (width,)),
            ("attn.bias", (1, 1, context, context)),
            ("attn.c_attn.weight", (width, 3 * width)), ("attn.c_attn.bias", (3 * width,)),
            ("attn.c_proj.weight", (width, width)), ("attn.c_proj.bias", (width,)),
            ("ln_2.weight", (width,)), ("ln_2.bias", (width,)),
            ("mlp.c_fc.weight", (width, 4 * width)), ("mlp.c_fc.bias", (4 * width,)),
            ("mlp.c_proj.weight", (4 * width, width)), ("mlp.c_proj.bias", (width,)),
        ):
            yield f"h.{layer}.{name}", shape
    yield "ln_f.weight", (width,)
    yield "ln_f.bias", (width,)


def touch_pages(tensors):
    """Reads a byte of every page, which is when a mapping is paid for."""
    for tensor in tensors.values():
        np.asarray(tensor).reshape(-1).view(np.uint8)[::PAGE].sum()


def measure(load, calls):
    """Seconds until load() returns, and until every page of what it returned has been read."""
    loaded, read = [], []
    while True:
        begin = time.perf_counter()
        tensors = load()
        loaded.append(time.perf_counter() - begin)
        touch_pages(tensors)
        read.append(time.perf_counter() - begin)
        del tensors
        if loaded[-1] >= 0.02 or len(loaded) >= calls:
            return statistics.median(loaded), statistics.median(read)


def run(arguments, folder):
    try:
        import torch
        from safetensors.torch import load_file, save_file
    except ModuleNotFoundError as error:
        sys.exit(f"bench: no module {error.name}: install torch and safetensors for "
                 f"{sys.executable}")
    sys.path.insert(0, str(CLIENT))
    import safetensorfs

    source, pickled, mountpoint = (folder / name for name in ("m.safetensors", "m.pt", "mnt"))
    tensors = {name: torch.randn(shape) for name, shape in shapes(arguments.layers)}
    count, nbytes = len(tensors), sum(tensor.nbytes for tensor in tensors.values())
    save_file(tensors, source)
    torch.save(tensors, pickled)
    del tensors

    ways = {
        "load_file(mount)": lambda: safetensorfs.load_file(mountpoint),
        'load_file(mount, framework="pt")':
            lambda: safetensorfs.load_file(mountpoint, framework="pt"),
        "safetensors.torch.load_file": lambda: load_file(source),
        "torch.load(mmap=True)": lambda: torch.load(pickled, mmap=True),
        "torch.load": lambda: torch.load(pickled),
    }
    rounds = {way: [] for way in ways}
    with Mount(arguments.binary, source, mountpoint):
        for load in ways.values():  # imports what it needs, and brings the file into the cache
            touch_pages(load())
        for number in range(arguments.rounds):
            order = list(ways) if number % 2 == 0 else list(reversed(ways))
            for way in order:
                rounds[way].append(measure(ways[way], arguments.calls))

    measurements, rows = {}, []
    base = 'load_file(mount, framework="pt")'
    for way, values in rounds.items():
        loaded, read = (Series(list(column)) for column in zip(*values))
        measurements[way] = {"load": loaded, "load_and_read": read}
    for way, of in measurements.items():
        times = {key: of[key] / measurements[base][key] for key in of}
        rows.append([
            f"`{way}`",
            Series([1e3 * value for value in of["load"].values]).format(3),
            times["load"].format(2),
            Series([1e3 * value for value in of["load_and_read"].values]).format(1),
        ])
    return Report(
        title=f"Load {count} tensors, {nbytes / 1e6:.0f} MB, in Python",
        columns=["call", "ms", f"times `{base}`", "ms, each page read"],
        rows=rows,
        notes=[
            f"median of {arguments.rounds} interleaved rounds (min-max) in one process, files in "
            "the page cache, everything imported and called once before",
            "each page read: until a byte of every 4 KiB of the tensors has been read, which is "
            "when pages of a mapping are taken",
            f"PyTorch {torch.__version__}",
        ],
        measurements=measurements)

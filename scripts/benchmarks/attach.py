"""Attaching in a second process to what is loaded, beside safetensors.torch.load_file.

The driver is the simulated one of tests/simulated_cuda: this is what the client, the mount and the
daemon take, without what a real driver takes to open the memory.
"""

import json
import subprocess
import sys

from .files import write_many_tensors, write_random
from .gpt2 import gpt2_sizes
from .mount import Mount
from .programs import CLIENT
from .report import Report
from .rounds import interleave
from .simulated_gpu import DEVICE, Simulation, command

HELP = "attach to tensors on a (simulated) GPU and in memory, in another process"

GPT2_COUNT = 160

# argv: folder of the client, mount, source, device or "safetensors", framework
PROGRAM = """
import json, sys, time
client, mount, source, device, framework = sys.argv[1:]
sys.path.insert(0, client)
import safetensorfs
if framework == "pt":
    import torch
    torch.cuda.init = lambda: None  # it would want more of the simulated driver
if device == "safetensors":
    from safetensors.torch import load_file
    load = lambda: load_file(source)
else:
    load = lambda: safetensorfs.load_file(mount, device=device, framework=framework)
seconds = []
while len(seconds) < 2 or (len(seconds) < 20 and sum(seconds) < 1):
    begin = time.perf_counter()
    tensors = load()
    seconds.append(time.perf_counter() - begin)
    count = len(tensors)
    del tensors
print(json.dumps([count, seconds[0], sorted(seconds[1:])[len(seconds) // 2 - 1]]))
"""

BASE = "`safetensors.torch.load_file(file)`"
# call: device, framework
WAYS = {
    f'`load_file(mount, "{DEVICE}", "cai")`': (DEVICE, "cai"),
    f'`load_file(mount, "{DEVICE}", "pt")`': (DEVICE, "pt"),
    '`load_file(mount, framework="np")`': ("cpu", "np"),
    '`load_file(mount, framework="pt")`': ("cpu", "pt"),
    BASE: ("safetensors", "pt"),
}


def add_arguments(parser):
    parser.add_argument("--tensors", type=int, nargs="+", default=[GPT2_COUNT, 10_000, 222_747],
                        metavar="N", help="160 are those of GPT-2 (default: %(default)s)")
    parser.add_argument("--megabytes", type=int, default=600,
                        help="of GPT-2, 548 at most (default: %(default)s)")


def write_source(path, count, megabytes):
    if count == GPT2_COUNT:
        write_random(path, gpt2_sizes(megabytes))
    else:
        write_many_tensors(path, count)


def measure(mount, source, count, way, environment):
    """Seconds of the first call in a process of its own, and the median of the next."""
    words = [sys.executable, "-c", PROGRAM, CLIENT, mount.mountpoint, source, *WAYS[way]]
    output = subprocess.run([str(word) for word in words], check=True, env=environment,
                            stdout=subprocess.PIPE, text=True).stdout
    found, first, again = json.loads(output)
    if found != count:
        sys.exit(f"bench: {way} gives {found} tensors, not {count}")
    return {"first": first, "again": again}


def run(arguments, folder):
    simulation = Simulation(arguments.binary, folder / "simulation")
    rows, measurements = [], {}
    for count in arguments.tensors:
        source = folder / f"{count}.safetensors"
        write_source(source, count, arguments.megabytes)
        with Mount(arguments.binary, source, folder / "mnt", simulation.environment) as mount:
            command(mount, f"load {DEVICE} *")
            ways = {way: lambda way=way: measure(mount, source, count, way, simulation.environment)
                    for way in WAYS}
            series = interleave({"attach": ways}, arguments.rounds)["attach"]
            command(mount, f"unload {DEVICE} *")
        source.unlink()
        for way, of in series.items():
            shares = {key: of[key] / series[BASE][key] for key in of}
            rows.append([f"{count:,}", way, of["first"].scaled(1e3).format(2),
                         shares["first"].format(2), of["again"].scaled(1e3).format(2),
                         shares["again"].format(2)])
        measurements[count] = series
    return Report(
        title="Attach in a second process",
        columns=["tensors", "call", "ms, first call", f"share of {BASE}", "ms, next calls",
                 f"share of {BASE}"],
        rows=rows,
        notes=[
            f"median of {arguments.rounds} interleaved rounds (min-max), each call in a process of "
            "its own, with everything imported; files in the page cache",
            f"{DEVICE}: tensors that the daemon has loaded, the simulated driver",
            '"cai": objects with __cuda_array_interface__; "pt": torch.Tensor; next calls: the '
            "median of up to 19 in the same process, each after the tensors of the last have died",
        ],
        measurements=measurements)

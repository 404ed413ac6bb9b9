"""Loading into the memory of a cuda device, beside what the CPU's part of it costs by itself.

The driver is the simulated one of tests/simulated_cuda: a copy to the device costs a memcpy into host
memory that was written before.
"""

import json
import os
import subprocess
from pathlib import Path

from .files import write_random
from .gpt2 import gpt2_sizes
from .mount import Mount
from .report import Goal, Report, Series
from .rounds import drop_caches, why_caches_stay
from .simulated_gpu import DEVICE, Simulation, command

HELP = "load into a (simulated) GPU's memory, beside pread and memcpy alone"

ROUNDS = 11

TINY = "tiny"
WHOLE = 600  # MB that hold all of GPT-2
SMALL_NBYTES = 4096

# What copy_baseline.c calls them.
BASELINES = {"pread alone": "read", "memcpy alone": "copy", "pread and memcpy": "both"}
# Of a source that is not in the page cache.
COLD = {"pread alone": "read", "pread alone, O_DIRECT": "direct"}
NEAREST = "pread and memcpy"


def add_arguments(parser):
    parser.add_argument("--megabytes", type=int, default=4000, metavar="N",
                        help="size of the large model (default: %(default)s)")
    parser.add_argument("--tensors", type=int, default=100_000, metavar="N",
                        help="of 4 KiB (default: %(default)s)")


def large_sizes(nbytes):
    """Tensors of 20 MB, and one of a fifth of the whole."""
    count = max(1, round(0.8 * nbytes / 20e6))
    part = int(0.8 * nbytes / count)
    return {TINY: 4, "embedding": nbytes - count * part,
            **{f"layers.{number // 10}.part_{number % 10}": part for number in range(count)}}


def small_sizes(count):
    return {TINY: 4, **{f"experts.{number}.scale": SMALL_NBYTES for number in range(count)}}


class Worker:
    """The process of the device, which must hold something."""

    def __init__(self, mount):
        handle = json.loads(
            (mount.mountpoint / ".devices" / DEVICE / "handles" / TINY).read_text())
        self.pid = handle["pid"]

    def memory(self):
        """VmHWM, and the present RssShmem, which is the simulated device's."""
        fields = status_of(self.pid)
        return fields["VmHWM"], fields["RssShmem"]


def status_of(pid):
    """Bytes of the memory fields of /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {key: int(value.split()[0]) * 1024 for key, value in fields.items() if " kB" in value}


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Source:
    """A model, its baselines and its loads."""

    def __init__(self, path, sizes, program):
        self.path, self.count = path, len(sizes)
        self.offset, self.nbytes = write_random(path, sizes)
        self._program = program
        self._threads = min(16, len(os.sched_getaffinity(0)))

    def baseline(self, what):
        """Wall-clock and CPU seconds."""
        words = [self._program, self.path, self.offset, self.nbytes, self._threads,
                 (BASELINES | COLD)[what]]
        output = subprocess.run([str(word) for word in words], check=True, capture_output=True,
                                text=True).stdout
        return tuple(float(word) for word in output.split())

    def load(self, mount):
        """The same of a load, with the memory of the worker while it holds all."""
        worker = Worker(mount)
        pids = mount.pid, worker.pid
        before = sum(map(cpu_seconds, pids))
        seconds = command(mount, f"load {DEVICE} *")
        used = sum(map(cpu_seconds, pids)) - before
        memory = worker.memory()
        # All but the first, so that the worker stays.
        command(mount, f"unload {DEVICE} [!{TINY[0]}]*")
        return (seconds, used), memory

    def measure(self, mount, rounds):
        """{what: {"seconds": Series, "cpu": Series}}, and the worker's memory."""
        command(mount, f"load {DEVICE} {TINY}")
        self.load(mount)  # brings the file into the cache and pins the slots
        steps = {what: lambda what=what: self.baseline(what) for what in BASELINES}
        memories = []

        def load():
            times, memory = self.load(mount)
            memories.append(memory)
            return times

        steps["load"] = load
        values = {what: [] for what in steps}
        for number in range(rounds):
            for what in (list(steps) if number % 2 == 0 else list(reversed(steps))):
                values[what].append(steps[what]())
        series = {what: {"seconds": Series([wall for wall, _ in pairs]),
                         "cpu": Series([cpu for _, cpu in pairs])}
                  for what, pairs in values.items()}
        return series, max(memories)


def can_bypass_cache(path):
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


def measure_cold(source, mount, rounds):
    """Seconds of reading and of loading a source that is not in the page cache."""
    if why_caches_stay():
        return {}
    command(mount, f"load {DEVICE} {TINY}")
    steps = {what: lambda what=what: source.baseline(what)[0] for what in COLD
             if COLD[what] != "direct" or can_bypass_cache(source.path)}
    steps["load"] = lambda: source.load(mount)[0][0]
    values = {what: [] for what in steps}
    for number in range(rounds):
        for what in (list(steps) if number % 2 == 0 else list(reversed(steps))):
            drop_caches()
            values[what].append(steps[what]())
    return {what: Series(of) for what, of in values.items()}


def measure_start(arguments, source, folder, simulation):
    """Seconds until the mount answers, and from there until the first tensor is loaded."""
    mounted, loaded = [], []
    for _ in range(arguments.rounds):
        with Mount(arguments.binary, source.path, folder / "mnt", simulation.environment) as mount:
            mounted.append(mount.seconds)
            loaded.append(command(mount, f"load {DEVICE} {TINY}"))
    return {"mount": Series(mounted), "load": Series(loaded)}


def speeds(source, series):
    """Rows of one source."""
    rows = []
    for what, times in series.items():
        rate = Series([source.nbytes / seconds / 1e9 for seconds in times["seconds"].values])
        share = times["seconds"] / series["load"]["seconds"]
        cpu = Series([seconds / source.nbytes * 1e9 for seconds in times["cpu"].values])
        name = f"{source.nbytes / 1e6:,.0f} MB in {source.count - 1:,} tensors: {what}"
        rows.append([name, rate.format(2), "" if what == "load" else share.format(2),
                     cpu.format(3)])
        times["load_share"] = share
    return rows


def run(arguments, folder):
    simulation = Simulation(arguments.binary, folder / "simulation")
    program, mountpoint = folder / "baseline", folder / "mnt"
    source = Path(__file__).with_name("copy_baseline.c")
    subprocess.run(["cc", "-O2", "-pthread", source, "-o", program], check=True)
    rows, goals, notes, measurements = [], [], [], {}

    sizes = {"gpt2": {TINY: 4, **gpt2_sizes(WHOLE)},
             "large": large_sizes(arguments.megabytes * 1_000_000),
             "small": small_sizes(arguments.tensors)}
    for name, of in sizes.items():
        source = Source(folder / f"{name}.safetensors", of, program)
        with Mount(arguments.binary, source.path, mountpoint, simulation.environment) as mount:
            series, (peak, device) = source.measure(mount, arguments.rounds)
            daemon = status_of(mount.pid)["VmHWM"]
            rows += speeds(source, series)
            measurements[name] = {**series, "daemon_peak": daemon, "worker_peak": peak,
                                  "worker_device_bytes": device}
            notes.append(
                f"{source.nbytes / 1e6:,.0f} MB, peak memory: VmHWM of the daemon "
                f"{daemon / 2**20:.0f} MiB, of the worker {(peak - device) / 2**20:.0f} MiB "
                "without the simulated device's memory")
            if name == "gpt2":
                cold = measure_cold(source, mount, arguments.rounds)
                for what, seconds in cold.items():
                    rate = Series([source.nbytes / value / 1e9 for value in seconds.values])
                    share = "" if what == "load" else (seconds / cold["load"]).format(2)
                    rows.append([f"not in the page cache: {what}", rate.format(2), share, ""])
                measurements[name]["cold"] = cold
        if name == "gpt2":
            start = measure_start(arguments, source, folder, simulation)
            measurements["start"] = start
            notes.append(
                f"a cold daemon: {start['mount'].format(3)} s until it has mounted, "
                f"{start['load'].format(3)} s from there until the first tensor is loaded (looking "
                "for devices, the worker's start)")
        if name == "small":
            rate = Series([arguments.tensors / value for value in series["load"]["seconds"].values])
            goals.append(Goal(f"{arguments.tensors:,} tensors of 4 KiB, tensors/s", rate,
                              at_least=1e6, digits=0))
        else:
            goals.append(Goal(f"{source.nbytes / 1e6:,.0f} MB, share of {NEAREST}",
                              series[NEAREST]["load_share"], at_least=0.9))
        source.path.unlink()

    return Report(
        title="Load into a simulated GPU's memory",
        columns=["what", "GB/s", "load's share of it", "CPU s per GB"],
        rows=rows,
        goals=goals,
        notes=[
            "simulated driver: a copy costs a memcpy, so that the row "
            f"{NEAREST!r}, both at once in as many threads, is what a load could reach here",
            f"median of {arguments.rounds} interleaved rounds (min-max), as many threads as CPUs, "
            "16 at most; source in the page cache unless said otherwise",
            "a load: from write(2) to .control until it returns, by the daemon and the worker",
            *notes,
            *([f"skipped: not in the page cache: {why_caches_stay()}"] if why_caches_stay() else []),
        ],
        measurements=measurements)

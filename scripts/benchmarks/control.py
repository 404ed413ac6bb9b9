"""What a command costs by itself, and what 1,000 waiting writers cost everyone else."""

import json
import mmap
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from .files import write_holes
from .mount import Mount
from .report import Report, Series

HELP = "the fixed cost of a command, and reads while 1,000 writers wait"

CLIENT = Path(__file__).resolve().parent.parent / "client"
C_PROGRAM = r"""
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
int main(int argc, char **argv) {
  /* argv: control file, repetitions, commands that take turns */
  int repetitions;
  sscanf(argv[2], "%d", &repetitions);
  for (int i = 0; i < repetitions; i++) {
    const char *command = argv[3 + i % (argc - 3)];
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    int fd = open(argv[1], O_WRONLY);
    if (write(fd, command, strlen(command)) < 0) return 1;
    close(fd);
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%ld\n", (end.tv_sec - begin.tv_sec) * 1000000000L + end.tv_nsec - begin.tv_nsec);
  }
}
"""
# argv: control file, writers, command
C_CROWD = r"""
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv) {
  for (int i = 0; i < atoi(argv[2]); i++) {
    if (fork() == 0) {
      int fd = open(argv[1], O_WRONLY);
      _exit(write(fd, argv[3], strlen(argv[3])) < 0);
    }
  }
  while (wait(NULL) > 0) {}
}
"""


def add_arguments(parser):
    parser.add_argument("--writers", type=int, default=1000, metavar="N",
                        help="that wait at once (default: %(default)s)")
    parser.add_argument("--gigabytes", type=int, default=12, metavar="N",
                        help="of the load that they wait for (default: %(default)s)")


def latencies(action, until=None, count=200):
    values = []
    while len(values) < count and (until is None or not until()):
        begin = time.perf_counter()
        action()
        values.append(time.perf_counter() - begin)
    return values


def fixed_costs(program, mount, repetitions=200):
    """Median seconds of loading one tensor of 4 bytes, by each way of saying so."""
    control = str(mount.mountpoint / ".control")
    load, unload = "load cpu tiny\n", "unload cpu tiny\n"
    output = subprocess.run([program, control, str(2 * repetitions), load, unload], check=True,
                            capture_output=True, text=True).stdout
    in_c = [int(line) / 1e9 for line in output.split()[::2]]

    script = (f"for i in $(seq {repetitions}); do begin=${{EPOCHREALTIME/./}}; "
              f"echo 'load cpu tiny' > '{control}'; end=${{EPOCHREALTIME/./}}; "
              f"echo $((end - begin)); echo 'unload cpu tiny' > '{control}'; done")
    output = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True).stdout
    in_bash = [int(line) / 1e6 for line in output.split()]

    import safetensorfs
    in_client = []
    with safetensorfs.Mount(mount.mountpoint) as client:
        for _ in range(repetitions):
            in_client += latencies(lambda: client.load("cpu", "tiny"), count=1)
            client.unload("cpu", "tiny")
    return {"C": statistics.median(in_c), "bash": statistics.median(in_bash),
            "Python client": statistics.median(in_client)}


def add(waits, state, stats, reads):
    for what, values in ("stat of .status", stats), ("read of 4 KiB", reads):
        waits.setdefault(f"{what}, {state}, median", []).append(statistics.median(values))
        waits.setdefault(f"{what}, {state}, worst", []).append(max(values))


def looks(mount):
    """One stat of a tensor that the kernel has not cached, one of .status, one read of 4 bytes."""
    # .status has a fresh node at each lookup: its stat asks the daemon every time.
    def status():
        os.stat(mount.mountpoint / ".status")

    def read():
        # O_DIRECT: past the page cache, to the daemon.
        fd = os.open(mount.mountpoint / "small", os.O_RDONLY | os.O_DIRECT)
        try:
            os.preadv(fd, [buffer], 0)
        finally:
            os.close(fd)

    buffer = mmap.mmap(-1, 4096)
    return status, read


def run(arguments, folder):
    sys.path.insert(0, str(CLIENT))
    program, crowd = folder / "control", folder / "crowd"
    for text, binary in ((C_PROGRAM, program), (C_CROWD, crowd)):
        subprocess.run(["cc", "-O2", "-x", "c", "-", "-o", binary], input=text, text=True, check=True)
    source = folder / "m.safetensors"
    write_holes(source, {"tiny": 4, "small": 4096, "large": arguments.gigabytes << 30})

    costs = {way: [] for way in ("C", "bash", "Python client")}
    waits = {}
    reached = []
    with Mount(arguments.binary, source, folder / "mnt") as mount:
        status, read = looks(mount)
        for _ in range(arguments.rounds):
            for way, seconds in fixed_costs(program, mount).items():
                costs[way].append(seconds)
            add(waits, "idle", latencies(status), latencies(read))
            # Read again from the disk, so that the load takes its time.
            with open(source, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            writers = subprocess.Popen([crowd, mount.mountpoint / ".control",
                                        str(arguments.writers), "load cpu large\n"])
            values = ([], [])
            # Starting them keeps the CPUs busy; what counts is that they wait.
            waiting = lambda: len(json.loads((mount.mountpoint / ".status").read_text())["loads"])
            while writers.poll() is None and waiting() < arguments.writers:
                pass
            while writers.poll() is None:
                values[0].extend(latencies(status, count=5))
                values[1].extend(latencies(read, count=5))
            reached.append(len(values[0]))
            add(waits, "waiting", *values)
            (mount.mountpoint / ".control").write_text("unload cpu large\n")

    micro = lambda values: Series([1e6 * value for value in values])
    rows = [[f"load of 4 bytes, {way}", micro(values).format(0)] for way, values in costs.items()]
    rows += [[key, micro(values).format(0)] for key, values in waits.items()]
    return Report(
        title="Commands",
        columns=["what", "us"],
        rows=rows,
        notes=[
            f"median of {arguments.rounds} rounds (min-max); a load of 4 bytes is the median of 200 in "
            "each round, open to close",
            f"waiting: {arguments.writers} processes have written `load cpu large` "
            f"({arguments.gigabytes} GB, a hole), the worst of {min(reached)} or more looks while they wait; "
            "idle: the worst of 200",
        ],
        measurements={"fixed": {way: Series(values) for way, values in costs.items()},
                      "waiting": {key: Series(values) for key, values in waits.items()}})

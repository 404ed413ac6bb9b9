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


class GatedSource:
    """A file behind tests/mount/slow_server, which lets no read past `limit` until it is opened."""

    def __init__(self, program, source, place, limit):
        place.mkdir()
        self.place = place
        self.server = subprocess.Popen([program, source, place], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True)
        if self.server.stdout.readline() != "ready\n":
            sys.exit(f"bench: {program}: does not mount")
        self.set_limit(limit)

    def set_limit(self, nbytes):
        print(nbytes, file=self.server.stdin, flush=True)

    def end(self):
        self.server.terminate()
        self.server.wait()


def while_waiting(mount, gate, limit, crowd, writers, status, read):
    """Latencies of status and read while the writers wait for a load that waits for its source."""
    gate.set_limit(limit)
    process = subprocess.Popen([crowd, mount.mountpoint / ".control", str(writers),
                                "load cpu large\n"])
    while len(json.loads((mount.mountpoint / ".status").read_text())["loads"]) < writers:
        pass
    values = latencies(status), latencies(read)
    gate.set_limit(1 << 62)
    process.wait()
    (mount.mountpoint / ".control").write_text("unload cpu large\n")
    return values


def run(arguments, folder):
    server = arguments.binary.parent / "tests/slow_server"
    if not server.exists():
        sys.exit(f"bench: {server}: not built")
    sys.path.insert(0, str(CLIENT))
    program, crowd = folder / "control", folder / "crowd"
    for text, binary in ((C_PROGRAM, program), (C_CROWD, crowd)):
        subprocess.run(["cc", "-O2", "-x", "c", "-", "-o", binary], input=text, text=True, check=True)

    costs = {way: [] for way in ("C", "bash", "Python client")}
    waits = {}
    for number in range(arguments.rounds):
        # A source of its own for each round: what has been read once does not wait again.
        source = folder / f"{number}.safetensors"
        offset = write_holes(source, {"tiny": 4, "small": 4096, "large": 64 << 20})
        limit = (offset + (32 << 20)) // 4096 * 4096
        with Mount(arguments.binary, source, folder / "mnt") as mount:
            for way, seconds in fixed_costs(program, mount).items():
                costs[way].append(seconds)
        gate = GatedSource(server, source, folder / f"gate{number}", limit)
        try:
            with Mount(arguments.binary, gate.place / "model.safetensors", folder / "mnt") as mount:
                status, read = looks(mount)
                add(waits, "idle", latencies(status), latencies(read))
                add(waits, "waiting", *while_waiting(mount, gate, limit, crowd, arguments.writers,
                                                     status, read))
        finally:
            gate.end()

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
            f"waiting: {arguments.writers} processes have written `load cpu large`, whose source "
            "does not answer; median and worst of 200 looks in each round",
            ".status then lists every command that waits",
        ],
        measurements={"fixed": {way: Series(values) for way, values in costs.items()},
                      "waiting": {key: Series(values) for key, values in waits.items()}})

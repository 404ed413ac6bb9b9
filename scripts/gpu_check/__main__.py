"""Checks and measures the cuda devices without a mount; prints a table.

Exit status: 0; 1 something failed; 77 no GPU.
"""

import argparse
import os
import platform
import signal
import sys
import tempfile
from pathlib import Path

import behaviour
import models
import speed
from machine import Machine, choose_folder, file_system_of
from programs import Session
from table import Failure, Table

NO_GPU = 77

# Title, function, whether it needs a GPU. One that has read the large model comes before those that
# want it in the page cache.
GROUPS = [
    ("reads alone", speed.check_reads, False),
    ("a context", speed.check_context, True),
    ("pinned copies", speed.check_copies, True),
    ("slabs", speed.check_slabs, True),
    ("warm loads", speed.check_warm_loads, True),
    ("small tensors", speed.check_small_tensors, True),
    ("the bytes of every dtype, leases", behaviour.check_bytes, True),
    ("attaching", behaviour.check_attaching, True),
    ("free bytes", behaviour.check_memory, True),
    ("several devices", behaviour.check_several_devices, True),
    ("loading without safetensorfs", speed.check_others, True),
    ("cold loads", speed.check_cold_loads, True),
]


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="gpu_check.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--program", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda:0", help="default: %(default)s")
    parser.add_argument("--dir", help="where models go, on a disk (default: one with room)")
    parser.add_argument(
        "--gigabytes",
        type=float,
        metavar="N",
        help="size of the large model (default: 6, less where there is little room)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small models and short measurements: checks, but measures nothing",
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="GROUP",
        choices=[row[0] for row in GROUPS],
        help="a group of rows, may be repeated: " + ", ".join(f"'{row[0]}'" for row in GROUPS),
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=300,
        metavar="SECONDS",
        help="after which the rest fails (default: %(default)s)",
    )
    return parser.parse_args()


def find_devices(arguments, folder):
    """{name: facts}, and why there are no more."""
    tiny = models.write(Path(folder) / "tiny.safetensors", [("tiny", "U8", [4])])
    with Session(arguments.program, tiny.path) as session:
        answer = session.ask("devices")
    return {device["name"]: device for device in answer["devices"]}, answer["missing"]


def describe(folder):
    parts = [
        f"{os.cpu_count()} CPUs, {len(os.sched_getaffinity(0))} of them usable",
        f"Linux {platform.release()}",
        f"Python {platform.python_version()}",
        f"models in {folder} ({file_system_of(folder)})",
    ]
    return "; ".join(parts)


def run(arguments, folder):
    table = Table()

    def end(*_):
        table.is_over = True
        raise Failure("time is up")

    signal.signal(signal.SIGALRM, end)
    signal.alarm(arguments.limit)
    devices, missing = find_devices(arguments, folder)
    device = devices.get(arguments.device)
    reason = None if device else missing or f"no device {arguments.device}"
    table.add("machine", describe(folder))
    if device:
        product = device.get("product", "")
        table.add(
            "device",
            f"{arguments.device}: {product + ', ' if product else ''}"
            f"{device['uuid']}, {device['total_nbytes']:,} bytes",
        )
    machine = Machine(
        arguments, folder, arguments.device, device["total_nbytes"] if device else 1 << 40
    )
    for title, function, needs_gpu in GROUPS:
        if arguments.only and title not in arguments.only:
            continue
        if needs_gpu and not device:
            table.add(title, reason, "skipped")
            continue
        extra = [devices] if function is behaviour.check_several_devices else []
        table.run_group(title, function, machine, table, *extra)
    signal.alarm(0)
    print(table.text("gpu_check: " + ("all rows" if device else reason)))
    if table.has_failed():
        return 1
    return 0 if device else NO_GPU


def main():
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parent = arguments.dir or choose_folder(20e9)
    with tempfile.TemporaryDirectory(prefix="gpu_check.", dir=parent) as folder:
        return run(arguments, folder)


if __name__ == "__main__":
    sys.exit(main())

"""What takes how long."""

import os
import statistics
from pathlib import Path

import cache
from machine import file_system_of
from programs import Program, lines_of
from table import Failure, Skip, gigabytes

ROUNDS = 3
MEBIBYTE = 1 << 20


def spread(values, show):
    middle, ends = statistics.median(values), (min(values), max(values))
    return f"{show(middle)} ({show(ends[0])}-{show(ends[1])})"


def micro(seconds):
    return f"{1e6 * seconds:.0f}"


def check_context(machine, table):
    def measure():
        with machine.context() as context:
            before = context.free_once_still()
            with machine.context() as other:
                taken = before - context.free_once_still()
                seconds = other.ready["start_seconds"]
            left = before - context.free_once_still()
        return f"{taken:,} bytes of device memory, made in {seconds:.3f} s; {left:,} after its end"

    table.check("a context", measure)


def check_copies(machine, table):
    seconds = 0.02 if machine.quick else 0.15
    try:
        lines = lines_of([machine.program, "copies", machine.ordinal, seconds])
    except Failure as error:
        return table.add("pinned copies", str(error), "FAILED")
    rates, slots = {}, []
    for line in lines:
        if "streams" in line:
            key = line["kind"], line["streams"]
            rates.setdefault(key, {})[line["slot_nbytes"]] = line["bytes_per_second"]
    slots = sorted(next(iter(rates.values())))
    table.add(
        "copies, by slot size",
        "GB/s with slots of " + ", ".join(f"{slot / MEBIBYTE:g}" for slot in slots) + " MiB",
    )
    for (kind, streams), by_slot in rates.items():
        what = kind if kind == "to host" else f"from {kind} memory"
        table.add(
            f"copies {what}, {streams} stream{'s' * (streams > 1)}",
            ", ".join(gigabytes(rate) for _, rate in sorted(by_slot.items())) + " GB/s",
        )
    pinned = [
        rate
        for (kind, streams), by_slot in rates.items()
        if kind in ("registered", "allocated") and streams == 2
        for rate in by_slot.values()
    ]
    machine.ceiling = max(pinned, default=None)
    if ("registered", 2) not in rates:
        table.add(
            "copies from registered memory", "cuMemHostRegister_v2 does not work here", "skipped"
        )
    for line in lines:
        if "pin_seconds" in line:
            table.add(
                f"pinning {line['pin_nbytes'] // MEBIBYTE} MiB, {line['kind']}",
                f"{1e3 * line['pin_seconds']:.1f} ms in one thread",
            )


def check_slabs(machine, table):
    count = 8

    def measure(nbytes):
        command = [machine.program, "slabs", machine.ordinal, nbytes, count]
        with Program(command) as holder:
            held = holder.read()
            (opened,) = lines_of(
                [machine.program, "open", machine.ordinal],
                stdin="".join(handle + "\n" for handle in held["handles"]),
            )
            holder.write("")
            freed = holder.read()
        times = {**held, **opened, **freed}
        return "us: " + ", ".join(
            f"{what} {spread(times[what + '_seconds'], micro)}"
            for what in ("allocate", "export", "open", "close", "free")
        )

    for nbytes in (2 * MEBIBYTE, 256 * MEBIBYTE):
        if nbytes * count > 0.5 * machine.total_nbytes:
            table.add(f"a slab of {nbytes // MEBIBYTE} MiB", "too little device memory", "skipped")
        else:
            table.check(f"a slab of {nbytes // MEBIBYTE} MiB", measure, nbytes)


def check_reads(machine, table):
    def measure(threads):
        command = [machine.program, "reads", machine.large.path, threads]
        rates = [lines_of(command)[0]["bytes_per_second"] for _ in range(1 + ROUNDS)]
        return f"{spread(rates[1:], gigabytes)} GB/s, {gigabytes(rates[0])} the first time"

    for count, has_cpus in machine.readers():
        if has_cpus:
            table.check(f"reads alone, {count} threads", measure, count)
        else:
            table.add(f"reads alone, {count} threads", f"{len(machine.cpus)} CPUs", "skipped")


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def check_warm_loads(machine, table):
    def measure(readers):
        rates, last = [], 0
        with machine.session(machine.large, machine.cpus[:readers]) as session:
            for _ in range(1 + ROUNDS):
                answer = session.ask("load", machine.device, "*")
                rates.append(machine.large.nbytes / answer["seconds"])
                used = cpu_seconds(session.ask("slabs", machine.device)["slabs"][0]["pid"])
                session.ask("unload", machine.device, "*")
                per_gigabyte, last = (used - last) / machine.large.nbytes * 1e9, used
        machine.large_rate = statistics.median(rates[1:])
        share = (
            f", {machine.large_rate / machine.ceiling:.2f} of the copies'"
            if machine.ceiling
            else ""
        )
        return (
            f"{spread(rates[1:], gigabytes)} GB/s{share}; {gigabytes(rates[0])} with the worker's "
            f"start; {per_gigabyte:.3f} CPU s per GB"
        )

    for count, has_cpus in machine.readers():
        if has_cpus:
            table.check(f"warm load, {count} readers", measure, count)
        else:
            table.add(f"warm load, {count} readers", f"{len(machine.cpus)} CPUs", "skipped")

    def verify():
        with machine.loaded(machine.large) as session:
            seconds = session.ask("verify", machine.device)["seconds"]
        return f"{gigabytes(machine.large.nbytes / seconds)} GB/s"

    table.check("verify", verify)


def check_cold_loads(machine, table):
    # About 2 GB: the embedding is not among them.
    patterns = ["model.layers.[0-9].*"]

    def measure(*words):
        path = machine.large.path
        if file_system_of(path) in ("tmpfs", "ramfs"):
            raise Skip(f"{path.parent} is in memory; --dir names a folder on a disk")
        rates, shares = [], []
        with machine.session(machine.large) as session:
            session.ask("load", machine.device, "model.layers.0.norm_1.weight")
            session.ask("unload", machine.device, "*")
            for _ in range(2):
                how = cache.drop(path)
                before = cache.share(path)
                answer = session.ask(*words, "load", machine.device, *patterns)
                shares.append((before, cache.share(path)))
                nbytes = sum(
                    tensor["nbytes"]
                    for slab in session.ask("slabs", machine.device)["slabs"]
                    for tensor in slab["tensors"]
                )
                rates.append(nbytes / answer["seconds"])
                session.ask("unload", machine.device, "*")
        before, after = shares[-1]
        if before > 0.1:
            raise Skip(f"{before:.0%} of the file stay in the page cache")
        return (
            f"{' and '.join(map(gigabytes, rates))} GB/s, {nbytes / 1e9:.2f} GB ({how}; "
            f"{before:.0%} of the file cached before, {after:.0%} after)"
        )

    table.check("cold load, past the cache where that works", measure)
    table.check("cold load, buffered", measure, "buffered")


def check_small_tensors(machine, table):
    def measure():
        rates = []
        with machine.session(machine.small) as session:
            for _ in range(1 + ROUNDS):
                answer = session.ask("load", machine.device, "*")
                rates.append(machine.small.count / answer["seconds"])
                session.ask("unload", machine.device, "*")
        share = machine.small.nbytes / machine.small.count
        return (
            f"{spread(rates[1:], lambda rate: f'{rate:,.0f}')} tensors/s, "
            f"{gigabytes(statistics.median(rates[1:]) * share)} GB/s; {rates[0]:,.0f} with the "
            "worker's start"
        )

    table.check(f"{machine.small.count:,} tensors of 4 KiB", measure)


def check_others(machine, table):
    def measure(way, model):
        answer = machine.with_library("PyTorch", "compare.py", way, model.path, machine.device)
        rates = [model.nbytes / seconds for seconds in answer["seconds"]]
        ours = machine.large_rate if model is machine.large else None
        times = (
            f"; a warm load takes {statistics.median(rates) / ours:.2f} of its time" if ours else ""
        )
        return (
            f"{spread(rates, gigabytes)} GB/s, {gigabytes(model.nbytes / answer['first_seconds'])}"
            f" the first time{times}"
        )

    for model in (machine.large, machine.gpt2):
        table.check(
            f"safetensors.torch.load_file, {model.nbytes / 1e9:.2f} GB", measure, "load_file", model
        )
    table.check(
        f"torch.load, {machine.gpt2.nbytes / 1e9:.2f} GB", measure, "torch_load", machine.gpt2
    )

    def load():
        rates = []
        with machine.session(machine.gpt2) as session:
            for _ in range(1 + ROUNDS):
                answer = session.ask("load", machine.device, "*")
                rates.append(machine.gpt2.nbytes / answer["seconds"])
                session.ask("unload", machine.device, "*")
        return f"{spread(rates[1:], gigabytes)} GB/s; {gigabytes(rates[0])} with the worker's start"

    table.check(f"warm load, {machine.gpt2.nbytes / 1e9:.2f} GB", load)

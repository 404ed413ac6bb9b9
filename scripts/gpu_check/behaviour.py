"""What has to be so on every machine."""

import errno
import json
import os
import time

import models
from machine import TOLERANCE
from programs import DEADLINE
from table import Failure, Skip, gigabytes

WAYS = {
    "driver": "the driver API",
    "interface": "PyTorch, __cuda_array_interface__",
    "storage": "PyTorch, a storage on the address",
    "cupy": "CuPy",
}


def attach(machine, session, way):
    slabs = session.ask("slabs", machine.device)["slabs"]
    for slab in slabs:
        if slab["export"] != "cuda_ipc":
            raise Skip(slab["reason"])
    library = "CuPy" if way == "cupy" else None if way == "driver" else "PyTorch"
    return machine.with_library(library, "attach.py", way, stdin=json.dumps(slabs))


def check_bytes(machine, table):
    wanted = {name: digest for name, digest in machine.dtypes.digests.items() if name != "empty"}

    def digests(session, way):
        found = attach(machine, session, way)["digests"]
        wrong = sorted(name for name in wanted if found.get(name) != wanted[name])
        if wrong or len(found) != len(wanted):
            raise Failure(f"{len(wrong)} tensors differ: {', '.join(wrong[:5])}")
        return f"{len(found)} tensors of {len(models.DTYPES)} dtypes equal"

    def verify(session):
        session.ask("verify", machine.device)
        return "verify finds no difference"

    def handles(session):
        handle = session.ask("handle", machine.device, "slots")["handle"]
        empty = session.ask("handle", machine.device, "empty")["handle"]
        slab = next(
            slab
            for slab in session.ask("slabs", machine.device)["slabs"]
            if slab["slab"] == handle["slab"]
        )
        listed = next(tensor for tensor in slab["tensors"] if tensor["name"] == "slots")
        shared = ("export", "ipc_handle", "reason", "pid", "device_uuid", "slab_nbytes")
        same = all(handle.get(key) == slab.get(key) for key in shared)
        if not same or handle["offset"] != listed["offset"]:
            raise Failure(f"handle {handle} is not in slab {slab}")
        if empty["export"] != "none":
            raise Failure(f"a tensor without bytes has the handle {empty}")
        return f"{slab['export']}, {slab['slab_nbytes']:,} bytes, {len(slab['tensors'])} tensors"

    def read_back(session):
        nbytes, offset = 1 << 20, 4_000_001
        with open(machine.dtypes.path, "rb") as file:
            file.seek(offset - 9_000_001, os.SEEK_END)
            source = file.read(nbytes).hex()
        answer = session.ask("read", machine.device, "slots", offset, nbytes)
        if answer["hex"] != source:
            raise Failure("what is read back is not what the file holds")
        return f"1 MiB equal, {1e3 * answer['seconds']:.2f} ms the first time"

    with machine.loaded(machine.dtypes) as session:
        for way, name in WAYS.items():
            table.check(f"SHA-256, {name}", digests, session, way)
        table.check("SHA-256, afterwards", verify, session)
        table.check("handles and slabs", handles, session)
        table.check("reading back", read_back, session)
        table.check("EBUSY where leased", leases, machine, session)


def leases(machine, session):
    lease = session.ask("lease", machine.device, "slots")["lease"]
    code, text = session.errno_of("unload", machine.device, "slots")
    if code != errno.EBUSY or f"pid {os.getpid()}" not in text:
        raise Failure(f"unload gave errno {code}: {text}")
    # A neighbour in the same slab cannot go either.
    neighbour, _ = session.errno_of("unload", machine.device, "U8.small")
    if neighbour != errno.EBUSY:
        raise Failure(f"unload of a neighbour gave errno {neighbour}")
    session.ask("release", machine.device, lease)
    session.ask("unload", machine.device, "*")
    return f"errno {code}, {text}; unloaded once it is released"


def check_attaching(machine, table):
    def measure(session, way):
        answer = attach(machine, session, way)
        slabs = len(session.ask("slabs", machine.device)["slabs"])
        return (
            f"{1e3 * answer['open_seconds']:.2f} ms to open {slabs} slabs, "
            f"{1e3 * answer['tensor_seconds']:.2f} ms to make {answer['count']} tensors"
        )

    with machine.loaded(machine.gpt2) as session:
        for way, name in WAYS.items():
            table.check(f"attaching, {name}", measure, session, way)


def wait_until(condition, what):
    end = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > end:
            raise Failure(f"not in {DEADLINE} s: {what}")


def expect_free(context, before, after_what):
    left = before - context.free_once_still()
    if abs(left) > TOLERANCE:
        raise Failure(f"{left:,} bytes are not free again after {after_what}")
    return f"{left:,} bytes not free again"


def check_memory(machine, table):
    device, nbytes = machine.device, machine.large.nbytes

    def unload(session, context):
        before = context.free_once_still()
        session.ask("load", device, "*")
        taken = before - context.free_once_still()
        session.ask("unload", device, "*")
        return f"a load of {nbytes:,} bytes took {taken:,}; " + expect_free(
            context, before, "unload"
        )

    def cancel(session, context, seconds):
        before = context.free_once_still()
        for attempt in range(10):
            job = session.begin("load", device, "*")
            wait_until(lambda: context.free() < before - nbytes // 2, "slabs allocated")
            time.sleep(seconds / 2 / (1 + attempt))
            progress = session.ask("cancel", job)
            answer = session.wait(job)
            if answer["error"] == errno.EINTR:
                done = progress["done_nbytes"] / progress["total_nbytes"]
                return f"errno {errno.EINTR}, {done:.0%} done; " + expect_free(
                    context, before, "a cancelled load"
                )
            if answer["error"]:
                raise Failure(f"errno {answer['error']}: {answer['text']}")
            session.ask("unload", device, "*")
        raise Skip("every load had ended before it could be cancelled")

    def run_out(session, context):
        before = context.free_once_still()
        left = context.free("take", before - nbytes // 2)
        code, text = session.errno_of("load", device, "*")
        still = context.free_once_still()
        context.free("give")
        if code != errno.ENOMEM:
            raise Failure(f"with {left:,} bytes free, errno {code}: {text}")
        if abs(still - left) > TOLERANCE:
            raise Failure(f"{left - still:,} bytes are gone after ENOMEM")
        session.ask("load", device, "*")
        session.ask("unload", device, "*")
        return f"errno {code}, {text}; {expect_free(context, before, 'ENOMEM')}; loads again"

    def idle(context):
        before = context.free_once_still()
        with machine.session(machine.dtypes, idle_milliseconds=500) as session:
            session.ask("load", device, "*")
            session.ask("unload", device, "*")
            held = before - context.free_once_still()
            begin = time.monotonic()
            wait_until(lambda: context.free() > before - TOLERANCE, "the idle worker has ended")
            return (
                f"{held:,} bytes of its context back {time.monotonic() - begin:.1f} s later; "
                + expect_free(context, before, "the worker's end")
            )

    with machine.context() as context:
        with machine.session(machine.large) as session:
            # What the worker takes for itself it takes now.
            session.ask("load", device, "*")
            session.ask("unload", device, "*")
            seconds = session.ask("load", device, "*")["seconds"]
            session.ask("unload", device, "*")
            table.check("free bytes after unload", unload, session, context)
            table.check("free bytes after cancelling", cancel, session, context, seconds)
            table.check("free bytes after out of memory", run_out, session, context)
        table.check("free bytes after the worker's end", idle, context)


def check_several_devices(machine, table, devices):
    def load():
        if len(devices) < 2:
            raise Skip("one device")
        two = [machine.device, next(name for name in devices if name != machine.device)]
        with machine.session(machine.large) as session:
            begin = time.perf_counter()
            jobs = [session.begin("buffered", "load", device, "*") for device in two]
            answers = [session.wait(job) for job in jobs]
            seconds = time.perf_counter() - begin
            for answer in answers:
                if answer["error"]:
                    raise Failure(answer["text"])
            for device in two:
                session.ask("verify", device)
                session.ask("unload", device, "*")
        return (
            f"{' and '.join(two)} side by side, {gigabytes(2 * machine.large.nbytes / seconds)} "
            "GB/s together, both verified"
        )

    table.check("several devices", load)

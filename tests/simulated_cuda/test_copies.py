"""Streams, events and what copies may and may not touch."""

import pytest
from support import MIB, refused, run_python

NOT_READY = 600


def pinned(driver, data):
    """Registered host memory with the data."""
    address = driver.host_memory(len(data))
    driver.write(address, data)
    driver.register(address, len(data))
    return address


@pytest.fixture
def remote(process):
    remote = process()
    remote.start()
    return remote


def test_bytes_go_to_the_device_and_back(remote, simulation):
    device, host = remote.allocate(6), remote.host_memory(6)
    remote.write(host, "abcdef")
    remote.to_device(device, host, 6)
    remote.write(host, "......")
    remote.to_host(host, device + 2, 3)
    assert remote.read(host, 6) == "cde..."
    counters = simulation.counters()
    assert counters["host_to_device_bytes"] == 6
    assert counters["device_to_host_bytes"] == 3


def test_a_copy_reads_its_source_when_it_executes(remote, simulation):
    device, host, stream = remote.allocate(3), pinned(remote, "old"), remote.stream()
    event = remote.event()
    assert remote.query(event) == 0
    simulation.configure(stall=1)
    remote.to_device_async(device, host, 3, stream)
    remote.record(event, stream)
    assert remote.query(event) == NOT_READY
    remote.write(host, "new")
    simulation.configure(stall=0)
    remote.call("cuEventSynchronize", event)
    assert remote.query(event) == 0
    assert remote.read(device, 3) == "new"


def test_a_source_that_is_reused_at_once_shows_without_any_configuration(simulation):
    program = """
from driver import Driver
driver = Driver()
driver.start()
device, host, stream = driver.allocate(1), driver.allocate_host(1), driver.stream()
too_late = 0
for _ in range(100):
    driver.write(host, "o")
    driver.to_device_async(device, host, 1, stream)
    driver.write(host, "n")
    driver.wait_for_stream(stream)
    too_late += driver.read(device, 1) == "n"
assert too_late > 50, too_late
"""
    run_python(simulation, program)


def test_copies_of_a_stream_execute_in_order(remote, simulation):
    device, stream, other = remote.allocate(8), remote.stream(), remote.stream()
    sources = [pinned(remote, text) for text in ("first", "second", "third")]
    simulation.configure(stall=1)
    events = [remote.event() for _ in sources]
    for source, event in zip(sources, events, strict=True):
        remote.to_device_async(device, source, 5, stream)
        remote.record(event, stream)
    remote.wait_for_stream(other)  # of which nothing was asked
    assert [remote.query(event) for event in events] == [NOT_READY] * 3
    simulation.configure(stall=0)
    remote.wait_for_stream(stream)
    assert [remote.query(event) for event in events] == [0] * 3
    assert remote.read(device, 5) == "third"


def test_a_blocking_stream_is_in_order_with_the_null_stream(remote, simulation):
    device, stream = remote.allocate(1), remote.stream(0)
    first, second = pinned(remote, "1"), pinned(remote, "2")
    simulation.configure(copy_delay_us=20000)
    remote.to_device_async(device, first, 1, stream)
    simulation.configure(copy_delay_us=0)
    remote.to_device_async(device, second, 1)
    remote.wait_for_stream(0)
    assert remote.read(device, 1) == "2"
    remote.destroy_stream(stream)


def test_pageable_sources_are_read_before_the_call_returns(remote, simulation):
    device, host, stream = remote.allocate(3), remote.host_memory(3), remote.stream()
    remote.write(host, "old")
    remote.to_device_async(device, host, 3, stream)
    remote.write(host, "new")
    remote.wait_for_stream(stream)
    assert remote.read(device, 3) == "old"
    assert simulation.counters()["pageable_copies"] == 1


def test_copies_from_the_device_execute_later_too(remote, simulation):
    device, host, stream = remote.allocate(3), pinned(remote, "..."), remote.stream()
    simulation.configure(stall=1)
    remote.to_host_async(host, device, 3, stream)
    remote.write(device, "abc")
    assert remote.read(host, 3) == "..."
    simulation.configure(stall=0)
    remote.synchronize()
    assert remote.read(host, 3) == "abc"


def test_copies_can_be_slow(remote, simulation):
    device, host = remote.allocate(MIB), remote.host_memory(MIB)
    simulation.configure(copy_bytes_per_second=1)
    remote.send("to_device", device, host, MIB)
    simulation.wait_for(lambda s: s.counters()["call.cuMemcpyHtoD_v2"] == 1)
    simulation.configure(copy_bytes_per_second=0)
    remote.reply()


@pytest.mark.parametrize(("offset", "size"), [(-1, 1), (0, 11), (10, 1), (9, 2), (1 << 40, 1)])
def test_a_copy_outside_an_allocation_poisons_the_process(remote, simulation, offset, size):
    device, host = remote.allocate(10), remote.host_memory(11)
    stream = remote.stream()
    with refused(700):
        remote.to_device_async(device + offset, host, size, stream)
    for call in (remote.memory_info, remote.synchronize, remote.event, remote.retain):
        with refused(700):
            call()
    assert remote.device_count() == 2
    counters = simulation.counters()
    assert counters["copies_outside_memory"] == counters["poisoned_processes"] == 1
    assert simulation.process(remote.pid).poisoned


def test_a_copy_after_a_free_poisons_the_process(remote):
    device, host = remote.allocate(10), remote.host_memory(10)
    remote.free(device)
    with refused(700):
        remote.to_host(host, device, 10)


def test_handles_are_checked(remote):
    stream, event = remote.stream(), remote.event()
    device, host = remote.allocate(1), remote.host_memory(1)
    remote.destroy_stream(stream)
    remote.call("cuEventDestroy_v2", event)
    for call in (
        lambda: remote.destroy_stream(stream),
        lambda: remote.wait_for_stream(stream),
        lambda: remote.to_device_async(device, host, 1, stream),
        lambda: remote.record(event),
        lambda: remote.call("cuEventQuery", event),
        lambda: remote.record(remote.event(), 12345),
    ):
        with refused(400):
            call()


@pytest.mark.parametrize(
    ("method", "counter"),
    [("free", "freed_while_copying"), ("unregister", "host_freed_while_copying")],
)
def test_ending_memory_that_is_copied_waits_and_is_counted(remote, simulation, method, counter):
    device, host, stream = remote.allocate(1), pinned(remote, "x"), remote.stream()
    simulation.configure(stall=1)
    remote.to_device_async(device, host, 1, stream)
    remote.send(method, device if method == "free" else host)
    simulation.wait_for(lambda s: s.counters()[counter] == 1)
    assert simulation.counters()["host_to_device_copies"] == 0
    simulation.configure(stall=0)
    remote.reply()
    assert simulation.counters()["host_to_device_copies"] == 1


def test_ending_memory_after_an_event_is_not_counted(remote, simulation):
    device, host, stream = remote.allocate(1), pinned(remote, "x"), remote.stream()
    for _ in range(100):
        remote.to_device_async(device, host, 1, stream)
        event = remote.event()
        remote.record(event, stream)
        remote.call("cuEventSynchronize", event)
        remote.unregister(host)
        remote.register(host, 1)
    remote.free(device)
    counters = simulation.counters()
    assert counters["host_freed_while_copying"] == counters["freed_while_copying"] == 0


def test_a_destroyed_stream_still_executes_its_copies(remote, simulation):
    device, host, stream = remote.allocate(1), pinned(remote, "x"), remote.stream()
    simulation.configure(stall=1)
    remote.to_device_async(device, host, 1, stream)
    remote.destroy_stream(stream)
    assert simulation.counters()["streams_destroyed_in_use"] == 1
    simulation.configure(stall=0)
    remote.synchronize()
    assert remote.read(device, 1) == "x"


def test_many_threads_copy_at_once(simulation):
    program = """
import os, threading
from driver import Driver
driver = Driver()
context = driver.start()
SIZE = 1 << 20
failures = []

def work(number):
    try:
        driver.set_current(context)
        stream, host = driver.stream(), driver.allocate_host(SIZE)
        for turn in range(20):
            data = bytes([number * 20 + turn]) * SIZE
            driver.write(host, data)
            device = driver.allocate(SIZE)
            for offset in range(0, SIZE, SIZE // 64):
                driver.to_device_async(device + offset, host + offset, SIZE // 64, stream)
            event = driver.event()
            driver.record(event, stream)
            while driver.query(event) == 600:
                pass
            assert driver.read(device, SIZE).encode("latin-1") == data
            driver.free(device)
        driver.free_host(host)
        driver.destroy_stream(stream)
    except BaseException as error:
        failures.append(error)
        raise

threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures
"""
    run_python(simulation, program)
    counters = simulation.counters()
    assert counters["host_to_device_copies"] == 8 * 20 * 64
    assert counters["host_to_device_bytes"] == 8 * 20 * MIB
    assert counters["allocations"] == counters["frees"] == 160
    misuse = ("freed_while_copying", "host_freed_while_copying", "streams_destroyed_in_use")
    assert [counters[name] for name in misuse] == [0, 0, 0]
    assert simulation.processes()[0].allocated[0] == simulation.processes()[0].pinned == 0

"""Memory that other processes attach to."""

import os
import shutil
import subprocess

import pytest
from support import MIB, refused

OTHER_USER = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def exporter(process):
    remote = process()
    remote.start()
    return remote


@pytest.fixture
def importer(process):
    remote = process()
    remote.start()
    return remote


def shared(exporter, text="shared"):
    """Device memory with a text, and its handle."""
    address = exporter.allocate(len(text))
    exporter.write(address, text)
    return address, exporter.export(address)


def test_another_process_sees_the_memory_and_writes_it(exporter, importer, simulation):
    address, handle = shared(exporter)
    assert len(handle) == 128
    opened = importer.open(handle)
    assert importer.read(opened, 6) == "shared"
    host = importer.host_memory(6)
    importer.to_host(host, opened, 6)
    assert importer.read(host, 6) == "shared"
    importer.write(host, "SH")
    importer.to_device(opened, host, 2)
    assert exporter.read(address, 6) == "SHared"
    (entry,) = simulation.imports()
    assert (entry.importer_pid, entry.exporter_pid) == (importer.pid, exporter.pid)
    assert simulation.process(importer.pid).imports == 1
    importer.close(opened)
    assert simulation.imports() == []
    with refused(1):
        importer.close(opened)
    exporter.free(address)
    assert simulation.counters()["freed_while_imported"] == 0


def test_opening_twice_gives_the_same_address(exporter, importer, simulation):
    _, handle = shared(exporter)
    opened = importer.open(handle)
    assert importer.open(handle) == opened
    importer.close(opened)
    assert importer.read(opened, 6) == "shared"
    assert len(simulation.imports()) == 1
    importer.close(opened)
    assert simulation.imports() == []


def test_what_cannot_be_exported(exporter, importer, simulation):
    address, handle = shared(exporter)
    with refused(1):
        exporter.export(address + 1)
    with refused(1):
        importer.export(importer.open(handle))
    simulation.configure(ipc=0)
    with refused(801):
        exporter.export(address)
    with refused(801):
        importer.open(handle)


def test_what_cannot_be_freed_or_closed(exporter, importer):
    address, handle = shared(exporter)
    opened = importer.open(handle)
    with refused(1):
        importer.free(opened)
    with refused(1):
        exporter.close(address)
    with refused(1):
        importer.close(opened + 1)


def test_the_exporter_cannot_open_its_own_handle(exporter):
    _, handle = shared(exporter)
    with refused(201):
        exporter.open(handle)


def test_flags(exporter, importer, simulation):
    _, handle = shared(exporter)
    for flags in (0, 2, 3):
        with refused(1):
            importer.open(handle, flags)
    assert simulation.counters()["handles_refused"] == 3


def test_what_is_no_handle(importer):
    with refused(1):
        importer.open("00" * 64)


def test_another_devices_context(exporter, importer):
    _, handle = shared(exporter)
    importer.set_current(importer.retain(1))
    with refused(201):
        importer.open(handle)


def test_the_same_device_under_another_ordinal(exporter, process):
    importer = process(CUDA_VISIBLE_DEVICES="1,0")
    importer.start(1)
    _, handle = shared(exporter)
    assert importer.read(importer.open(handle), 6) == "shared"


def test_an_exporter_that_has_ended(exporter, importer, simulation):
    _, early = shared(exporter)
    _, late = shared(exporter)
    opened = importer.open(early)
    exporter.kill()
    with refused(1):
        importer.open(late)
    assert importer.read(opened, 6) == "shared"
    (entry,) = simulation.imports()
    assert (entry.importer_alive, entry.exporter_alive) == (True, False)


def test_memory_that_was_freed(exporter, importer):
    address, handle = shared(exporter)
    exporter.free(address)
    shared(exporter)  # its descriptor has the number that the freed one had
    with refused(1):
        importer.open(handle)


def test_freeing_under_an_importer_is_counted_and_shows(exporter, importer, simulation):
    address, handle = shared(exporter)
    opened = importer.open(handle)
    exporter.free(address)
    assert simulation.counters()["freed_while_imported"] == 1
    assert importer.read(opened, 6) == "\xdd" * 6


def test_importers_that_have_died_do_not_count(exporter, importer, simulation):
    address, handle = shared(exporter)
    importer.open(handle)
    importer.kill()
    exporter.free(address)
    assert simulation.counters()["freed_while_imported"] == 0


def test_closing_while_copying_is_counted(exporter, importer, simulation):
    _, handle = shared(exporter)
    opened, host = importer.open(handle), importer.allocate_host(6)
    stream = importer.stream()
    simulation.configure(stall=1)
    importer.to_host_async(host, opened, 6, stream)
    importer.send("close", opened)
    simulation.wait_for(lambda s: s.counters()["closed_while_copying"] == 1)
    simulation.configure(stall=0)
    importer.reply()
    assert importer.read(host, 6) == "shared"


def test_imports_cost_no_memory(exporter, importer, simulation):
    address = exporter.allocate(64 * MIB)
    used = simulation.used_bytes()
    importer.open(exporter.export(address))
    assert simulation.used_bytes() == used


@as_root
def test_another_user(exporter, process):
    _, handle = shared(exporter)
    other = process(user=OTHER_USER)
    other.start()
    with refused(1):
        other.open(handle)


@as_root
def test_root_is_another_user_too(importer, process):
    other = process(user=OTHER_USER)
    other.start()
    _, handle = shared(other)
    with refused(1):
        importer.open(handle)


@as_root
def test_one_user_that_both_have_become(process, simulation):
    exporter, importer = process(user=OTHER_USER), process(user=OTHER_USER)
    exporter.start()
    importer.start()
    _, handle = shared(exporter)
    assert importer.read(importer.open(handle), 6) == "shared"
    assert simulation.process(exporter.pid).effective_user == OTHER_USER


@as_root
def test_another_pid_namespace(exporter, process):
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-p", "true"]).returncode:
        pytest.skip("no PID namespaces here")
    _, handle = shared(exporter)
    other = process(before=("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"))
    other.start()
    with refused(1):
        other.open(handle)

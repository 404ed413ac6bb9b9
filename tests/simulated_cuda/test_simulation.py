"""The simulated driver does what tests of the cuda device rely on."""

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from support import CONTEXT, MIB, refused, run_python, start_python

def test_exports_every_name_that_it_counts_and_no_others():
    header = (Path(__file__).parent / "symbol.h").read_text()
    names = re.findall(r'^    "(cu\w+)",$', header, re.MULTILINE)
    assert len(names) == 39
    library = Path(os.environ["SIMULATED_CUDA_LIBRARY"]) / "libcuda.so.1"
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True
    )
    exported = {line.split()[-1] for line in listing.stdout.splitlines()}
    assert set(names) <= exported
    assert all(re.fullmatch("cu[A-Z].*", name) for name in exported)


class TestInitialization:
    def test_without_a_simulation_there_is_no_device(self, process):
        remote = process(SIMULATED_CUDA="")
        with refused(100):
            remote.init()
        with refused(3):
            remote.device_count()

    def test_what_needs_cuinit_says_so(self, process, simulation):
        simulation.configure(driver_version=12020)
        remote = process()
        assert remote.version() == 12020
        for call in (remote.device_count, remote.retain, remote.synchronize):
            with refused(3):
                call()

    def test_a_fork_after_cuinit_has_no_driver(self, process):
        remote = process()
        assert remote.in_child("cuInit", 0) == 0
        context = remote.start()
        assert remote.in_child("cuInit", 0) == 3
        assert remote.in_child("cuCtxSetCurrent", context) == 3
        assert remote.in_child("cuMemFree_v2", 0) == 3
        remote.synchronize()

    def test_errors_have_names(self, process):
        assert process().error_name(201) == "CUDA_ERROR_INVALID_CONTEXT"

    def test_cuinit_can_fail(self, process, simulation):
        simulation.configure(init_error=803)
        with refused(803):
            process().init()

    def test_cuinit_can_hang(self, process, simulation):
        simulation.configure(init_hang=1)
        remote = process()
        remote.send("init")
        simulation.wait_for(lambda s: s.counters()["call.cuInit"] == 1)
        assert remote.process.poll() is None
        assert simulation.processes() == []

    def test_another_abi_aborts(self, process, simulation):
        remote = process()
        remote.start()
        remote.send("code", "cuMemAlloc", 0, 0)
        status, errors = remote.end()
        assert status == -signal.SIGABRT
        assert errors == (
            "simulated libcuda.so.1: cuMemAlloc was called, which is not the ABI to call\n"
        )
        assert simulation.counters()["old_abi_calls"] == 1

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ({"memmory": 1}, 'unknown key "memmory"'),
            ({"memory": "8G"}, "memory=8G is not a whole number"),
            ({"hang_call": "cuMemAlloc"}, '"cuMemAlloc" is no function of this library'),
            ({"fail_call": "cuMemAlloc_v2"}, "fail_call=cuMemAlloc_v2 is not SYMBOL:CODE[:N]"),
        ],
    )
    def test_a_mistake_in_the_configuration_aborts(self, process, simulation, config, message):
        simulation.configure(**config)
        remote = process()
        remote.send("init")
        status, errors = remote.end()
        assert status == -signal.SIGABRT
        assert errors == f"simulated libcuda.so.1: config: {message}\n"


class TestDevices:
    def test_devices_differ(self, process, simulation):
        simulation.configure(memory_1=4 << 30, mig_1=1, integrated_0=1)
        remote = process()
        remote.init()
        assert remote.device_count() == 2
        assert remote.device_uuid(0) != remote.device_uuid(1)
        assert [remote.device_memory(i) for i in (0, 1)] == [8 << 30, 4 << 30]
        assert [remote.device_bus(i) for i in (0, 1)] == ["0000:01:00.0", "0000:02:00.0"]
        assert ["MIG" in remote.device_name(i) for i in (0, 1)] == [False, True]
        assert [remote.attribute(18, i) for i in (0, 1)] == [1, 0]
        with refused(101):
            remote.device_name(2)

    @pytest.mark.parametrize(
        ("visible", "devices"),
        [
            ("1,0", [1, 0]),
            ("1", [1]),
            ("0,7,1", [0]),
            ("GPU-abcdef01", [1]),
            ("MIG-abcdef01-2345,0", [1, 0]),
            ("", []),
            ("-1", []),
            ("0,0", []),
        ],
    )
    def test_visible_devices(self, process, simulation, visible, devices):
        uuids = ["00112233445566778899aabbccddeeff", "abcdef01-2345-6789-abcd-ef0123456789"]
        simulation.configure(uuid_0=uuids[0], uuid_1=uuids[1])
        remote = process(CUDA_VISIBLE_DEVICES=visible)
        if not devices:
            with refused(100):
                remote.init()
            return
        remote.init()
        expected = [uuids[i].replace("-", "") for i in devices]
        assert [remote.device_uuid(i) for i in range(remote.device_count())] == expected


class TestContexts:
    def test_calls_need_a_current_context(self, process):
        remote = process()
        remote.init()
        for call in (remote.memory_info, remote.synchronize, remote.event, remote.stream):
            with refused(201):
                call()
        with refused(201):
            remote.allocate(1)

    def test_a_released_context_is_destroyed_with_all_that_it_had(self, process, simulation):
        remote = process()
        context = remote.start()
        remote.retain()
        remote.allocate(MIB)
        remote.allocate_host(MIB)
        assert simulation.used_bytes() == CONTEXT + 2 * MIB
        remote.release()
        assert remote.current() == context
        remote.release()
        assert simulation.used_bytes() == 0
        assert simulation.pinned_bytes() == 0
        with refused(709):
            remote.memory_info()
        with refused(201):
            remote.set_current(context)
        with refused(201):
            remote.release()
        assert simulation.counters()["contexts_created"] == 1

    def test_a_context_costs_memory(self, process, simulation):
        simulation.configure(memory=1000 * MIB, context_bytes=400 * MIB, reserved=100 * MIB)
        first, second, third = process(), process(), process()
        first.start()
        assert first.memory_info() == [500 * MIB, 1000 * MIB]
        second.start()
        assert first.memory_info() == [100 * MIB, 1000 * MIB]
        with refused(2):
            third.start()
        assert simulation.context_bytes() == 800 * MIB

    def test_prohibited(self, process, simulation):
        simulation.configure(compute_mode_0=2)
        remote = process()
        with refused(46):
            remote.start()
        remote.start(1)

    def test_exclusive(self, process, simulation):
        simulation.configure(compute_mode=3)
        first, second = process(), process()
        first.start()
        first.retain()
        with refused(46):
            second.start()
        first.kill()
        second.start()

    def test_every_thread_has_a_current_context_of_its_own(self, simulation):
        program = """
import threading
from driver import Driver
driver = Driver()
context = driver.start()
seen = []
thread = threading.Thread(target=lambda: seen.append(driver.code("cuCtxSynchronize")))
thread.start()
thread.join()
assert seen == [201] and driver.current() == context
"""
        run_python(simulation, program)


class TestMemory:
    def test_memory_is_counted_in_2_mib_and_freed(self, process, simulation):
        remote = process()
        remote.start()
        free, _ = remote.memory_info()
        addresses = [remote.allocate(size) for size in (1, 2 * MIB, 2 * MIB + 1)]
        assert remote.memory_info()[0] == free - 8 * MIB
        assert all(address % 512 == 0 for address in addresses)
        for address in addresses:
            remote.free(address)
        assert remote.memory_info()[0] == free
        remote.free(0)
        with refused(1):
            remote.free(addresses[0])
        with refused(1):
            remote.allocate(0)
        assert simulation.counters()["frees"] == 3

    def test_processes_share_a_limit(self, process, simulation):
        simulation.configure(oom_at=10 * MIB)
        first, second = process(), process()
        first.start()
        second.start()
        first.allocate(6 * MIB)
        with refused(2):
            second.allocate(6 * MIB)
        second.allocate(4 * MIB)
        with refused(2):
            first.allocate(1)
        simulation.configure(oom_at=12 * MIB)
        first.allocate(1)
        assert simulation.allocated_bytes() == 12 * MIB

    def test_processes_that_compete_never_exceed_the_memory(self, process, simulation):
        simulation.configure(memory=100 * MIB, context_bytes=0)
        program = """
from driver import CudaError, Driver
driver = Driver()
driver.start()
try:
    while True:
        driver.allocate(1)
except CudaError as error:
    assert error.code == 2
input()
"""
        with contextlib.ExitStack() as stack:
            children = [start_python(simulation, program) for _ in range(4)]
            for child in children:
                stack.callback(child.kill)
            simulation.wait_for(lambda s: s.allocated_bytes() >= 98 * MIB, 60)
            for child in children:
                child.communicate(b"\n", timeout=60)
                assert child.returncode == 0
        assert sum(entry.allocated[0] for entry in simulation.processes()) == 98 * MIB

    def test_a_killed_process_has_nothing(self, process, simulation):
        first, second = process(), process()
        first.start()
        second.start()
        free, _ = second.memory_info()
        first.allocate(64 * MIB)
        first.allocate_host(MIB)
        assert second.memory_info()[0] == free - 64 * MIB
        first.kill()
        assert simulation.used_bytes() == CONTEXT
        assert simulation.pinned_bytes() == 0
        assert second.memory_info()[0] == free + CONTEXT

    def test_a_zombie_has_nothing(self, process, simulation):
        remote = process()
        remote.start()
        os.kill(remote.pid, signal.SIGKILL)
        os.waitid(os.P_PID, remote.pid, os.WEXITED | os.WNOWAIT)
        assert simulation.used_bytes() == 0

    def test_a_program_that_replaces_itself_has_nothing(self, simulation):
        program = """
import os, sys
from driver import Driver
driver = Driver()
driver.start()
if len(sys.argv) == 1:
    driver.allocate(64 << 20)
    os.execv(sys.executable, [sys.executable, "-c", os.environ["PROGRAM"], "again"])
assert driver.memory_info()[0] == (8192 - 300) << 20
"""
        run_python(simulation, program, PROGRAM=program)
        assert len(simulation.processes()) == 1

    def test_new_memory_can_be_poisoned(self, process, simulation):
        remote = process()
        remote.start()
        assert remote.read(remote.allocate(4), 4) == "\0\0\0\0"
        simulation.configure(poison=1)
        assert remote.read(remote.allocate(4), 4) == "\xa5\xa5\xa5\xa5"

    def test_pinned_memory(self, process, simulation):
        remote = process()
        remote.start()
        host = remote.host_memory(8192)
        remote.register(host, 8192)
        with refused(712):
            remote.register(host + 4096, 8192)
        with refused(713):
            remote.unregister(host + 1)
        remote.unregister(host)
        with refused(713):
            remote.unregister(host)
        allocated = remote.allocate_host(4096)
        remote.write(allocated, "x" * 4096)
        with refused(713):
            remote.unregister(allocated)
        remote.free_host(allocated)
        with refused(1):
            remote.free_host(allocated)
        with refused(1):
            remote.register(4096, 4096)
        entry = simulation.process(remote.pid)
        assert (entry.pinned, entry.pinned_peak) == (0, 8192)

    def test_pinning_can_be_unsupported(self, process, simulation):
        simulation.configure(register=0, host_alloc=0)
        remote = process()
        remote.start()
        with refused(801):
            remote.register(remote.host_memory(1), 1)
        with refused(2):
            remote.allocate_host(1)

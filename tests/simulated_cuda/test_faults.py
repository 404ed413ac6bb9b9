"""Faults that a test asks for."""

import signal

from support import MIB, refused


def started(process):
    remote = process()
    remote.start()
    return remote


def test_an_error_that_stays(process, simulation):
    simulation.configure(sticky_call="cuMemAlloc_v2", sticky_at=3)
    remote = started(process)
    remote.allocate(1)
    address = remote.allocate(1)
    with refused(700):
        remote.allocate(1)
    for call in (remote.memory_info, remote.synchronize, lambda: remote.free(address)):
        with refused(700):
            call()
    with refused(700):
        remote.release()
    other = process()
    other.start()
    other.allocate(1)
    counters = simulation.counters()
    assert counters["poisoned_processes"] == counters["injected_faults"] == 1
    assert simulation.process(remote.pid).poisoned


def test_an_error_that_stays_at_any_call(process, simulation):
    remote = started(process)
    simulation.configure(sticky_at=2)
    remote.memory_info()
    with refused(700):
        remote.event()
    with refused(700):
        remote.memory_info()


def test_copies_that_were_issued_do_not_execute_after_an_error_that_stays(process, simulation):
    remote = started(process)
    device, host, stream = remote.allocate(1), remote.allocate_host(1), remote.stream()
    remote.write(host, "x")
    simulation.configure(stall=1, sticky_call="cuMemGetInfo_v2")
    remote.to_device_async(device, host, 1, stream)
    with refused(700):
        remote.memory_info()
    with refused(700):
        remote.wait_for_stream(stream)
    assert simulation.counters()["host_to_device_copies"] == 0


def test_a_call_that_fails_always(process, simulation):
    simulation.configure(fail_call="cuStreamCreate:999,cuMemAlloc_v2:2:2")
    remote = started(process)
    for _ in range(2):
        with refused(999):
            remote.stream()
    remote.allocate(1)
    with refused(2):
        remote.allocate(1)
    remote.allocate(1)
    simulation.configure(fail_call=None)
    remote.stream()
    assert simulation.counters()["injected_faults"] == 3


def test_counts_begin_again_with_a_new_configuration(process, simulation):
    remote = started(process)
    for _ in range(2):
        simulation.configure(fail_call="cuMemAlloc_v2:2:2")
        remote.allocate(1)
    with refused(2):
        remote.allocate(1)


def test_a_call_that_hangs(process, simulation):
    remote = started(process)
    simulation.configure(hang_call="cuMemAlloc_v2", hang_at=2)
    remote.allocate(MIB)
    remote.send("allocate", MIB)
    simulation.wait_for(lambda s: s.counters()["injected_faults"] == 1)
    assert remote.process.poll() is None
    assert simulation.allocated_bytes() == 2 * MIB
    remote.kill()
    assert simulation.allocated_bytes() == 0


def test_a_crash(process, simulation):
    remote = started(process)
    simulation.configure(crash_call="cuEventCreate")
    remote.send("event")
    assert remote.end()[0] == -signal.SIGKILL


def test_a_crash_with_a_signal(process, simulation):
    remote = started(process)
    simulation.configure(crash_call="cuEventCreate", crash_at=2, crash_signal=11)
    remote.event()
    remote.send("event")
    assert remote.end()[0] == -signal.SIGSEGV


def test_running_out_of_memory(process, simulation):
    simulation.configure(oom_at_1=4 * MIB)
    remote = process()
    remote.start(1)
    remote.allocate(4 * MIB)
    with refused(2):
        remote.allocate(1)
    remote.set_current(remote.retain(0))
    remote.allocate(8 * MIB)


def test_copies_see_a_new_configuration_too(process, simulation):
    remote = started(process)
    device, host = remote.allocate(1), remote.host_memory(1)
    remote.to_device(device, host, 1)
    simulation.configure(fail_call="cuMemcpyHtoD_v2:999")
    simulation.wait_for(lambda _: remote.code("cuMemcpyHtoD_v2", device, host, 1) == 999)

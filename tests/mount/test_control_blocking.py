"""What waits for a device: writers by the thousand, signals, a daemon that ends, an unmount."""

import concurrent.futures
import json
import os
import signal
import subprocess

import pytest

from checkpoints import file_name
from commands import (
    DEVICE, command, control_of, cuda_only, data_of, device_of, loaded, loads, read_data, report,
    skip_unless_lockable, status, wait_until,
)  # fmt: skip
from daemon import (
    DEADLINE, Mount, foreground, make_mountpoint, mounts_at, output_of, run, unmounting,
)  # fmt: skip
from gate import ENDING, HARMLESS, HELD_NBYTES, SMALL, Gate, Writer

LOAD_HELD = f"load {DEVICE} held\n"
# What a write says that the daemon's end has ended.
CUT_OFF = ("EINTR", "ENOTCONN", "ECONNABORTED")


def named(signals):
    return pytest.mark.parametrize("number", signals, ids=lambda number: number.name)


@pytest.fixture
def gate(folder):
    if DEVICE == "cpu":
        skip_unless_lockable(HELD_NBYTES + (1 << 20))
    with Gate(folder) as gate:
        yield gate


@pytest.fixture
def gated(gate, mount):
    yield mount(gate.source)
    gate.open()


@pytest.fixture
def writer(gated, gate):
    """Starts writers, and ends those that are left."""
    started = []

    def start(text, **options):
        started.append(Writer(gated, text, **options))
        wait_until(lambda: started[-1].is_known(gated), f"{text!r} in .status")
        return started[-1]

    yield start
    gate.open()
    for process in started:
        process.finish()


def pass_interrupts(writer, times=3):
    """Until the daemon has seen all signals up to now, since it is told of them in order."""
    for _ in range(times):
        waiting = writer(f"load {DEVICE} small.0\n", handled=[signal.SIGINT])
        waiting.kill(signal.SIGINT)
        assert waiting.finish() == "EINTR"


def assert_nothing_is_held(mounted, held_nbytes):
    """After a load that was cancelled: a worker that is late is not waited for by its writer."""
    if DEVICE != "cpu":
        wait_until(lambda: held_nbytes(mounted) == 0, "memory is freed")
    assert held_nbytes(mounted) == 0


def test_status_shows_what_runs_and_what_waits(gated, gate, writer):
    running = writer(LOAD_HELD)
    gate.wait_until_held()
    waiting = writer(f"verify {DEVICE} small.1\n")
    wait_until(lambda: loads(gated)[0]["nbytes_done"] > 0, "progress")
    first, second = loads(gated)
    assert (first["verb"], first["device"], first["pid"]) == ("load", DEVICE, running.pid)
    assert 0 < first["nbytes_done"] < first["nbytes_total"]
    assert HELD_NBYTES <= first["nbytes_total"] <= HELD_NBYTES + 8192
    assert (second["verb"], second["device"], second["pid"]) == ("verify", DEVICE, waiting.pid)
    assert second["nbytes_done"] == 0
    assert not {"held", b"held"} & loaded(gated)
    gate.open()
    assert running.finish() == "done"
    assert waiting.finish() == "ENOENT"
    assert loads(gated) == []
    assert loaded(gated) == {b"held"}


def test_a_thousand_waiting_writers_hold_up_nothing(gated, gate, writer, held_nbytes):
    running = writer(LOAD_HELD)
    gate.wait_until_held()
    script = (
        f'for n in $(seq 1000); do echo "load {DEVICE} small.$((n % 100))" > $0 || touch $1 & '
        "done; wait"
    )
    failed = gate.checkpoint.path.with_name("failed")
    with subprocess.Popen(["bash", "-c", script, control_of(gated), failed]) as shell:
        try:
            wait_until(lambda: len(loads(gated)) == 1001, "1,000 waiting writers")
            for name in SMALL:
                t = gate.checkpoint[name]
                assert (gated / name).read_bytes() == t.data
                assert os.getxattr(gated / name, "user.safetensors.name") == name.encode()
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                reads = pool.map(lambda name: (gated / f".npy/{name}.npy").read_bytes(), SMALL * 5)
                assert all(
                    data[-16:] == gate.checkpoint[n].data for data, n in zip(reads, SMALL * 5)
                )
            assert len(os.listdir(gated)) > len(SMALL)
            assert run("ls", "-l", data_of(gated)).returncode == 0
            assert loaded(gated) == set()
            assert len(loads(gated)) == 1001
        finally:
            gate.open()
        assert shell.wait(DEADLINE) == 0
    assert running.finish() == "done"
    assert not failed.exists()
    assert loaded(gated) == {file_name(name) for name in (*SMALL, "held")}
    command(gated, f"unload {DEVICE} *")
    assert held_nbytes(gated) == 0


def test_a_thousand_killed_writers_leave_nothing(gated, gate, writer):
    running = writer(LOAD_HELD)
    gate.wait_until_held()
    script = (
        'trap "kill 0" TERM; '
        f'for n in $(seq 1000); do echo "load {DEVICE} small.1" > $0 & done; wait'
    )
    with subprocess.Popen(["bash", "-c", script, control_of(gated)], start_new_session=True,
                          stderr=subprocess.PIPE) as shell:  # fmt: skip
        wait_until(lambda: len(loads(gated)) == 1001, "1,000 waiting writers")
        os.killpg(shell.pid, signal.SIGKILL)
        shell.communicate(timeout=DEADLINE)  # all of them hold its stderr
        wait_until(lambda: len(loads(gated)) == 1, "the end of the writers")
    gate.open()
    assert running.finish() == "done"
    assert loaded(gated) == {b"held"}


@named([*ENDING, signal.SIGKILL])
def test_a_signal_that_ends_cancels_a_load(gated, gate, writer, number, held_nbytes):
    running = writer(LOAD_HELD)
    gate.wait_until_held()
    running.kill(number)
    pass_interrupts(writer)
    gate.open()
    assert running.finish() == number.name
    wait_until(lambda: loads(gated) == [], "the end of the load")
    assert_nothing_is_held(gated, held_nbytes)
    assert loaded(gated) == set()
    command(gated, f"load {DEVICE} held")
    assert loaded(gated) == {b"held"}


@named(ENDING)
def test_a_signal_that_ends_cancels_where_it_is_handled_too(
    gated, gate, writer, number, held_nbytes
):
    running = writer(LOAD_HELD, handled=[number])
    gate.wait_until_held()
    running.kill(number)
    pass_interrupts(writer)
    gate.open()
    assert running.finish() == "EINTR"
    assert_nothing_is_held(gated, held_nbytes)
    assert loaded(gated) == set()


@cuda_only
def test_a_load_is_cancelled_though_its_source_does_not_go_on(gated, gate, writer, held_nbytes):
    """The worker's read of it ends later; on the cpu device the write waits for that."""
    command(gated, f"load {DEVICE} small.1")
    before = held_nbytes(gated)
    running = writer(LOAD_HELD, handled=[signal.SIGINT])
    gate.wait_until_held()
    running.kill(signal.SIGINT)
    assert running.finish() == "EINTR"
    assert "not let go" in report(gated)
    assert loads(gated) == [] and loaded(gated) == {b"small.1"}
    assert read_data(gated, "small.1") == gate.checkpoint["small.1"].data
    command(gated, "load cpu small.2")
    gate.open()
    wait_until(lambda: held_nbytes(gated) == before, "memory is freed")
    command(gated, f"load {DEVICE} held", f"verify {DEVICE}")
    assert loaded(gated) == {b"small.1", b"held"}


@cuda_only
def test_tensors_are_let_go_of_while_a_cancelled_load_waits_for_its_source(
    gated, gate, writer, held_nbytes
):
    for name in ("small.1", "small.2"):
        command(gated, f"load {DEVICE} {name}")
    before = held_nbytes(gated)
    running = writer(LOAD_HELD, handled=[signal.SIGINT])
    gate.wait_until_held()
    loading = held_nbytes(gated) - before
    running.kill(signal.SIGINT)
    assert running.finish() == "EINTR"
    command(gated, f"unload {DEVICE} small.1")
    output_of("rm", data_of(gated) / "small.2")
    assert loaded(gated) == set()
    assert held_nbytes(gated) == loading
    gate.open()
    wait_until(lambda: held_nbytes(gated) == 0, "memory is freed")


@cuda_only
def test_loads_cancelled_behind_one_that_does_not_go_on_keep_no_descriptors(gated, gate, writer):
    command(gated, f"load {DEVICE} small.1")
    with open(os.path.join(device_of(gated), "handles", "small.1")) as file:
        descriptors = f"/proc/{json.load(file)['pid']}/fd"
    running = writer(LOAD_HELD, handled=[signal.SIGINT])
    gate.wait_until_held()
    running.kill(signal.SIGINT)
    assert running.finish() == "EINTR"
    before = len(os.listdir(descriptors))
    for number in range(2, 7):
        waiting = writer(f"load {DEVICE} small.{number}\n", handled=[signal.SIGINT])
        waiting.kill(signal.SIGINT)
        assert waiting.finish() == "EINTR"
    wait_until(lambda: len(os.listdir(descriptors)) <= before, "descriptors are closed")


@named([*ENDING, signal.SIGKILL])
def test_a_signal_that_ends_cancels_a_waiting_command_at_once(gated, gate, writer, number):
    writer(LOAD_HELD)
    gate.wait_until_held()
    waiting = writer(f"load {DEVICE} small.1\n")
    waiting.kill(number)
    assert waiting.finish() == number.name
    (left,) = loads(gated)
    assert left["nbytes_total"] >= HELD_NBYTES


@named(HARMLESS)
def test_a_signal_that_is_handled_and_goes_on_cancels_nothing(gated, gate, writer, number):
    running = writer(LOAD_HELD, handled=[number])
    gate.wait_until_held()
    waiting = writer(f"load {DEVICE} small.1\n", handled=[number])
    running.kill(number)
    waiting.kill(number)
    pass_interrupts(writer)
    running.kill(number)
    pass_interrupts(writer, 1)
    gate.open()
    assert running.finish() == "done"
    assert waiting.finish() == "done"
    assert loaded(gated) == {b"held", b"small.1"}


def test_stopping_and_continuing_cancels_nothing(gated, gate, writer):
    running, waiting = writer(LOAD_HELD), writer(f"load {DEVICE} small.1\n")
    gate.wait_until_held()
    for number in (signal.SIGSTOP, signal.SIGCONT, signal.SIGTSTP, signal.SIGCONT):
        running.kill(number)
        waiting.kill(number)
        pass_interrupts(writer, 1)
    gate.open()
    assert running.finish() == "done"
    assert waiting.finish() == "done"
    assert loaded(gated) == {b"held", b"small.1"}


def test_a_harmless_signal_does_not_hide_a_later_one_that_ends(gated, gate, writer):
    """The kernel tells of one signal only."""
    writer(LOAD_HELD)
    gate.wait_until_held()
    waiting = writer(f"load {DEVICE} small.1\n", handled=[signal.SIGUSR1])
    waiting.kill(signal.SIGUSR1)
    pass_interrupts(writer)
    waiting.kill(signal.SIGTERM)
    assert waiting.finish() == "SIGTERM"


def test_a_cancelled_script_goes_no_further(gated, gate, writer):
    script = f"load {DEVICE} small.1\n{LOAD_HELD}load {DEVICE} small.2\n"
    running = writer(script, handled=[signal.SIGINT])
    gate.wait_until_held()
    running.kill(signal.SIGINT)
    pass_interrupts(writer)
    gate.open()
    assert running.finish() == "EINTR"
    assert loaded(gated) == {b"small.1"}
    reported = control_of(gated).read_text().splitlines()
    assert any("cancel" in line for line in reported), reported


def test_ctrl_c_ends_a_shell_script(gated, gate, writer):
    writer(LOAD_HELD)
    gate.wait_until_held()
    script = f'echo "load {DEVICE} small.1" > $0; echo went on'

    def interruptible():
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    shell = subprocess.Popen(
        ["bash", "-c", script, control_of(gated)], stdout=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=interruptible,
    )  # fmt: skip
    wait_until(lambda: len(loads(gated)) == 2, "the shell's command")
    os.killpg(shell.pid, signal.SIGINT)
    assert shell.communicate(timeout=DEADLINE)[0] == ""
    assert len(loads(gated)) == 1


def test_a_last_line_that_runs_at_the_close_is_cancelled_too(gated, gate, writer):
    writer(LOAD_HELD)
    gate.wait_until_held()
    closing = Writer(gated, f"load {DEVICE} small.1".rjust(512), handled=[signal.SIGINT])
    wait_until(lambda: closing.is_known(gated), "the last line")
    closing.kill(signal.SIGINT)
    assert closing.finish() == "done"
    assert len(loads(gated)) == 1


def test_a_killed_writer_runs_no_line_that_it_has_not_ended(gated, gate):
    """It may have meant another tensor: its descriptor is closed in the middle of a word."""
    for line in (f"load {DEVICE} small.1", "help") * 10:
        command(gated, f"load {DEVICE} small.2")
        ready, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(os.open(control_of(gated), os.O_WRONLY), line.rjust(512).encode())
            os.write(told, b"x")
            signal.pause()
        os.close(told)
        assert os.read(ready, 1) == b"x"
        os.close(ready)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert "PATTERN" not in report(gated)
        assert loaded(gated) == {b"small.2"}


def test_commands_of_one_device_run_in_order(gated, gate, writer):
    lines = [
        ("load", "small.1"), ("unload", "small.1"), ("load", "small.*"), ("unload", "small.1?"),
        ("verify", "small.1"), ("unload", "held"), ("unload", "small.9*"), ("load", "small.9"),
    ]  # fmt: skip
    writers = [writer(LOAD_HELD)]
    writers += [writer(f"{verb} {DEVICE} {pattern}\n") for verb, pattern in lines]
    assert [load["pid"] for load in loads(gated)] == [w.pid for w in writers]
    gate.open()
    assert [w.finish() for w in writers] == ["done"] * len(writers)
    left = {n for n in SMALL if n[6:][:1] != "9" and not (n[6:][:1] == "1" and len(n) == 8)}
    assert loaded(gated) == {file_name(name) for name in left | {"small.9"}}


def test_rm_is_refused_at_once_while_a_command_runs(gated, gate, writer):
    command(gated, f"load {DEVICE} small.1 small.2")
    running = writer(LOAD_HELD)
    gate.wait_until_held()
    removed = run("rm", "-f", data_of(gated) / "small.1")
    assert removed.returncode != 0 and "busy" in removed.stderr
    assert "rm" in control_of(gated).read_text()
    assert (data_of(gated) / "small.1").read_bytes() == gate.checkpoint["small.1"].data
    assert loaded(gated) == {b"small.1", b"small.2"}
    gate.open()
    assert running.finish() == "done"
    assert run("rm", data_of(gated) / "small.1", data_of(gated) / "held").returncode == 0
    assert loaded(gated) == {b"small.2"}


def test_a_failing_source_fails_the_load_alone(gated, gate, writer, held_nbytes):
    """Its server ends while the load waits for it."""
    command(gated, f"load {DEVICE} small.1")
    before = held_nbytes(gated)
    running = writer(LOAD_HELD)
    gate.wait_until_held()
    run(*unmounting(gate.place, lazily=True))
    gate.server.kill()
    assert running.finish() in ("EIO", "ENOMEM", "ESTALE")
    assert held_nbytes(gated) == before
    assert loaded(gated) == {b"small.1"}
    assert status(gated)["loads"] == []
    gate.server.stdin = open(os.devnull, "w")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_daemon_that_is_ended_during_a_load_ends_cleanly(gate, folder, number):
    place = make_mountpoint()
    try:
        with foreground(folder, "-f", gate.source, place) as process:
            mounted = Mount(gate.source, mountpoint=place).at(process.pid)
            running = Writer(mounted, LOAD_HELD)
            gate.wait_until_held()
            waiting = Writer(mounted, f"load {DEVICE} small.1\n")
            wait_until(lambda: waiting.is_known(mounted), "the waiting command")
            process.send_signal(number)
            assert waiting.written() in CUT_OFF
            gate.open()
            waiting.finish()
            assert running.finish() in CUT_OFF
            assert process.wait(DEADLINE) == 0
        assert mounts_at(place) == []
    finally:
        run(*unmounting(place, lazily=True))
        os.rmdir(place)


def test_a_lazy_unmount_during_a_load_ends_cleanly(gate, folder):
    place = make_mountpoint()
    with foreground(folder, "-f", gate.source, place) as process:
        mounted = Mount(gate.source, mountpoint=place).at(process.pid)
        running = Writer(mounted, LOAD_HELD)
        gate.wait_until_held()
        assert run(*unmounting(place)).returncode != 0, "busy"
        assert run(*unmounting(place, lazily=True)).returncode == 0
        assert mounts_at(place) == []
        gate.open()
        assert running.finish() in ("done", *CUT_OFF)
        assert process.wait(DEADLINE) == 0, process.stderr.read()
    os.rmdir(place)


def test_an_unmount_with_everything_loaded_ends_cleanly(gate, folder):
    place = make_mountpoint()
    gate.open()
    with foreground(folder, "-f", gate.source, place) as process:
        mounted = Mount(gate.source, mountpoint=place).at(process.pid)
        command(mounted, f"load {DEVICE} *")
        assert run(*unmounting(place)).returncode == 0
        assert process.wait(DEADLINE) == 0
    os.rmdir(place)

"""What a GPU, its driver and its worker do wrong, and what a user sees of it."""

import errno
import os
import re
import signal
import sys

import pytest

from checkpoints import tensor, write
from commands import (
    command, data_file, handle_of, holds, loaded, loads, read_data, refusal, report, status,
    wait_until,
)  # fmt: skip
from daemon import BINARY, output_of, run
from gate import Writer
from test_cuda import handle, info, worker_of

MIB = 1 << 20
TENSORS = [tensor("kept", "U8", (100_000,)), tensor("more", "U8", (6_000_001,)), tensor("small")]


@pytest.fixture
def model(folder, gpu_mount):
    """With one tensor loaded."""
    checkpoint = write(folder / "m.safetensors", TENSORS)
    mounted = gpu_mount(checkpoint.path)
    command(mounted, "load cuda:0 kept")
    return mounted, checkpoint


def assert_mount_reads(mounted, checkpoint):
    for t in checkpoint:
        assert (mounted / t.name).read_bytes() == t.data
    assert loads(mounted) == []
    command(mounted, "load cpu kept", "unload cpu kept")


def assert_works_again(mounted, checkpoint, simulation, **config):
    simulation.configure(**config)
    command(mounted, "load cuda:0 *", "verify cuda:0")
    for t in checkpoint:
        assert read_data(mounted, t.name, "cuda:0") == t.data
    assert simulation.allocated_bytes() == info(mounted, "cuda:0")["held_nbytes"]
    command(mounted, "unload cuda:0 *")
    assert simulation.allocated_bytes() == 0


# Faults that cost the load alone: configuration, errno, words of the sentence.
HARMLESS = {
    "too little memory": ({"memory_0": 305 * MIB}, "ENOMEM", r"needs 6,291,456 bytes .*free.*held"),
    "allocation fails": ({"oom_at": 3 * MIB}, "ENOMEM", r"needs 6,291,456 .*cuMemAlloc_v2: "),
    "copy fails": (
        {"fail_call": "cuMemcpyHtoDAsync_v2:1:1"}, "EIO",
        r"cuMemcpyHtoDAsync_v2: .*\(CUDA_ERROR_INVALID_VALUE\)",
    ),
    "export fails": ({"fail_call": "cuIpcGetMemHandle:1:1"}, "EIO", "cuIpcGetMemHandle: "),
}  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_a_load_that_fails_costs_nothing_but_itself(model, simulation, name):
    mounted, checkpoint = model
    config, code, words = HARMLESS[name]
    used = simulation.used_bytes()
    pid = worker_of(mounted, "kept")
    simulation.configure(**config)
    said = refusal(mounted, "load cuda:0 more small")
    assert said[0] == code and re.match(r"load cuda:0: ", said[1]) and re.search(words, said[1])
    assert report(mounted).endswith(said[1] + "\n")
    assert simulation.used_bytes() == used
    assert holds(mounted, "kept", device="cuda:0")
    assert worker_of(mounted, "kept") == pid
    assert read_data(mounted, "kept", "cuda:0") == checkpoint["kept"].data
    assert status(mounted)["warnings"] == []
    assert "last_failure" not in info(mounted, "cuda:0")
    assert_mount_reads(mounted, checkpoint)
    assert_works_again(mounted, checkpoint, simulation, **dict.fromkeys(config))


# Faults that cost the worker.
FATAL = {
    "poisoned while copying": (
        {"sticky_call": "cuMemcpyHtoDAsync_v2"}, r"cuMemcpyHtoDAsync_v2: .*ILLEGAL_ADDRESS",
    ),
    "poisoned while allocating": ({"sticky_call": "cuMemAlloc_v2"}, r"cuMemAlloc_v2: .*ILLEGAL"),
    "killed": ({"crash_call": "cuMemcpyHtoDAsync_v2"}, "the GPU's worker was killed by SIGKILL"),
    "crashed": (
        # Not SIGSEGV, which sanitizers handle.
        {"crash_call": "cuMemAlloc_v2", "crash_signal": 6},
        "the GPU's worker was killed by SIGABRT",
    ),
}  # fmt: skip


def assert_lost(mounted, reason):
    """One tensor, with all that leads to it."""
    assert loaded(mounted, "cuda:0") == set()
    assert os.listdir(mounted / ".devices/cuda:0/handles") == []
    assert os.listdir(mounted / ".devices/cuda:0/slabs") == []
    (warning,) = status(mounted)["warnings"]
    assert warning.startswith("cuda:0: lost 1 tensor, 100,000 bytes: ")
    assert re.search(reason, warning)
    assert re.search(reason, info(mounted, "cuda:0")["last_failure"])
    assert info(mounted, "cuda:0")["held_nbytes"] == 0


@pytest.mark.parametrize("name", FATAL)
def test_a_worker_that_fails_is_replaced(model, simulation, name):
    mounted, checkpoint = model
    config, words = FATAL[name]
    lease = os.open(handle_of(mounted, "kept", "cuda:0"), os.O_RDONLY)
    data = os.open(data_file(mounted, "kept", "cuda:0"), os.O_RDONLY)
    simulation.configure(**config)
    code, sentence = refusal(mounted, "load cuda:0 more")
    assert code == "EIO" and sentence.startswith("load cuda:0: ") and re.search(words, sentence)
    assert_lost(mounted, words)
    with pytest.raises(OSError) as stale:
        os.pread(data, 10, 0)
    assert stale.value.errno == errno.ESTALE
    wait_until(lambda: simulation.used_bytes() == 0, "the worker's end")
    assert_mount_reads(mounted, checkpoint)
    # The lease was on what is gone.
    assert_works_again(mounted, checkpoint, simulation, **dict.fromkeys(config))
    os.close(lease)
    os.close(data)


def test_a_driver_that_hangs_holds_up_nobody_else_and_can_be_cancelled(model, simulation):
    mounted, checkpoint = model
    command(mounted, "load cuda:1 more")
    simulation.configure(hang_call="cuMemcpyHtoDAsync_v2")
    writer = Writer(mounted, "load cuda:0 more\n", handled=[signal.SIGINT])
    wait_until(lambda: simulation.counters()["injected_faults"], "the hang")
    command(mounted, "verify cuda:1", "load cpu more")
    assert (mounted / "more").read_bytes() == checkpoint["more"].data
    assert read_data(mounted, "kept", "cuda:0") == checkpoint["kept"].data
    # rm holds the folder's lock: it never waits.
    assert errno_of_unlink(data_file(mounted, "kept", "cuda:0")) == errno.EBUSY
    waiting = Writer(mounted, "load cuda:0 small\n", handled=[signal.SIGINT])
    wait_until(lambda: waiting.is_known(mounted), "the second load")
    waiting.kill(signal.SIGINT)
    assert waiting.finish() == "EINTR"
    writer.kill(signal.SIGINT)
    assert writer.finish() == "EINTR"
    assert report(mounted).startswith("load cuda:0: cancelled")
    assert holds(mounted, "kept", device="cuda:0")
    # A call that does not return in 30 s never will.
    code, sentence = refusal(mounted, "load cuda:0 small")
    assert code == "EIO"
    hangs = "the NVIDIA driver hangs: cuMemcpyHtoDAsync_v2 has not returned in 30 s"
    assert sentence.startswith("load cuda:0: ") and sentence.endswith(hangs)
    assert_lost(mounted, hangs)
    command(mounted, "verify cuda:1", "unload cuda:1 *", "unload cpu more")
    wait_until(lambda: simulation.used_bytes() == 0, "the worker's end")
    assert_mount_reads(mounted, checkpoint)
    assert_works_again(mounted, checkpoint, simulation, hang_call=None)


def errno_of_unlink(path):
    with pytest.raises(OSError) as refused:
        os.unlink(path)
    return refused.value.errno


def test_a_worker_that_is_killed_at_rest_is_noticed(model, simulation):
    mounted, checkpoint = model
    os.kill(worker_of(mounted, "kept"), signal.SIGKILL)
    wait_until(lambda: status(mounted)["warnings"], "the warning")
    assert_lost(mounted, "the GPU's worker was killed by SIGKILL")
    assert refusal(mounted, "unload cuda:0 kept")[0] == "ENOENT"
    assert refusal(mounted, "verify cuda:0 kept")[0] == "ENOENT"
    assert refusal(mounted, "verify cuda:0") == ("ENOENT", "verify cuda:0: nothing is loaded")
    assert_mount_reads(mounted, checkpoint)
    assert_works_again(mounted, checkpoint, simulation)


# As programs do that never look at how their children end; it is inherited over exec.
IGNORING_CHILDREN = (
    sys.executable, "-c",
    "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN);"
    "os.execv(sys.argv[1], sys.argv[1:])",
)  # fmt: skip


def test_a_parent_that_ignores_children_changes_nothing(folder, gpu_mount):
    missing = run(*IGNORING_CHILDREN, BINARY, folder / "nothing", folder)
    assert missing.returncode == 30
    checkpoint = write(folder / "m.safetensors", TENSORS)
    mounted = gpu_mount(checkpoint.path, started_by=IGNORING_CHILDREN)
    command(mounted, "load cuda:0 kept")
    os.kill(worker_of(mounted, "kept"), signal.SIGKILL)
    wait_until(lambda: status(mounted)["warnings"], "the warning")
    assert_lost(mounted, "the GPU's worker was killed by SIGKILL")


def test_one_device_that_fails_leaves_the_other_alone(model, simulation):
    mounted, checkpoint = model
    command(mounted, "load cuda:1 *")
    os.kill(worker_of(mounted, "kept"), signal.SIGKILL)
    wait_until(lambda: status(mounted)["warnings"], "the warning")
    assert_lost(mounted, "SIGKILL")
    command(mounted, "verify cuda:1")
    for t in checkpoint:
        assert read_data(mounted, t.name, "cuda:1") == t.data


def test_what_did_succeed_on_one_of_two_devices_stays(model, simulation):
    mounted, _ = model
    simulation.configure(memory_1=MIB)
    code, _ = refusal(mounted, "load cuda:0,cuda:1 *")
    assert code == "ENOMEM"
    said = report(mounted).splitlines()
    assert re.match(r"load cuda:0: 2 tensors, .* 1 tensor already there", said[0])
    assert said[1].startswith("load cuda:1: ")
    assert len(loaded(mounted, "cuda:0")) == 3


@pytest.mark.parametrize(
    "config, reason",
    [
        ({"ipc": 0}, "CUDA shares no memory between processes here"),
        ({"compute_mode": 3}, "the GPU is in exclusive-process mode"),
        ({"integrated": 1}, "CUDA shares no memory of integrated GPUs"),
    ],
)
def test_where_memory_cannot_be_shared_the_rest_works(folder, mount, simulation, config, reason):
    simulation.configure(**config)
    checkpoint = write(folder / "m.safetensors", TENSORS)
    mounted = mount(checkpoint.path, environment=simulation.environment())
    command(mounted, "load cuda:0 *", "verify cuda:0")
    for t in checkpoint:
        assert read_data(mounted, t.name, "cuda:0") == t.data
        said = handle(mounted, t.name)
        assert said["export"] == "none" and said["reason"].startswith(reason)
        assert "ipc_handle" not in said


@pytest.mark.parametrize("config", [{"register": 0}, {"register": 0, "host_alloc": 0}])
def test_where_memory_cannot_be_pinned_loads_work(folder, mount, simulation, config):
    simulation.configure(**config)
    checkpoint = write(folder / "m.safetensors", TENSORS)
    mounted = mount(checkpoint.path, environment=simulation.environment())
    command(mounted, "load cuda:0 *", "verify cuda:0")
    for t in checkpoint:
        assert read_data(mounted, t.name, "cuda:0") == t.data


# What a machine lacks: configuration of the driver, what the sentence says.
MISSING = {
    "no driver": (None, "no NVIDIA driver: libcuda.so.1: "),
    "no GPU": ({"devices": 0}, "no GPU: the NVIDIA driver sees none"),
    "driver broken": ({"init_error": 803}, r"the NVIDIA driver does not work: cuInit: .*803|MISMATCH"),
    "driver crashes": ({"crash_call": "cuInit"}, "the process that looks for GPUs was killed by"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSING)
def test_without_a_gpu_the_sentence_says_what_is_missing_and_the_rest_works(
    folder, mount, simulation, name
):
    config, words = MISSING[name]
    environment = {"LD_LIBRARY_PATH": "/nowhere"}
    if config is not None:
        simulation.configure(**config)
        environment = simulation.environment()
    checkpoint = write(folder / "m.safetensors", TENSORS)
    mounted = mount(checkpoint.path, environment=environment)
    code, sentence = refusal(mounted, "load cuda:0 small")
    assert code == "ENODEV"
    assert sentence.startswith('load cuda:0: no device "cuda:0": ')
    assert re.search(words, sentence) and sentence.endswith("; there is cpu")
    assert os.listdir(mounted / ".devices") == ["cpu"]
    assert not (mounted / ".devices/cuda:0").exists()
    assert status(mounted)["warnings"] == []
    assert_mount_reads(mounted, checkpoint)
    if config is not None:
        # A driver that works by now is found by the next command.
        simulation.configure(**{**dict.fromkeys(config), "devices": 1})
        command(mounted, "load cuda:0 small")
        assert sorted(os.listdir(mounted / ".devices")) == ["cpu", "cuda:0"]


def test_a_device_that_is_not_there_is_named_with_those_that_are(model):
    mounted, _ = model
    code, sentence = refusal(mounted, "load cuda:2 small")
    assert code == "ENODEV"
    assert sentence == 'load cuda:2: no device "cuda:2"; there is cpu, cuda:0, cuda:1'


def children_of(pid):
    found = output_of("ps", "-o", "pid=", "--ppid", str(pid)).split()
    assert found
    return found


def test_a_driver_that_does_not_answer_keeps_nobody_from_the_mount(folder, mount, simulation):
    simulation.configure(init_hang=1)
    checkpoint = write(folder / "m.safetensors", TENSORS)
    mounted = mount(checkpoint.path, environment=simulation.environment())
    writer = Writer(mounted, "load cuda:0 small\n", handled=[signal.SIGINT])
    wait_until(lambda: simulation.counters()["call.cuInit"], "the probe")
    probe = children_of(mounted.pid)
    assert_mount_reads(mounted, checkpoint)
    assert output_of("cat", mounted / ".devices/cpu/info").startswith('{"name":"cpu"')
    writer.kill(signal.SIGINT)
    assert writer.finish() == "EINTR"
    waiting = Writer(mounted, "load cuda:1 small\n")
    os.kill(mounted.pid, signal.SIGTERM)
    mounted.wait_for_end()
    # It may have come too late to open the file.
    assert waiting.finish() in ("EINTR", "ENODEV", "ENOTCONN", "ECONNABORTED", "")
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in probe), "its end")


# In place of a driver: says a part of a frame on the probe's socket, and no more.
HALF_A_FRAME = """
#include <unistd.h>
__attribute__((constructor)) static void speak(void) {
  if (write(3, "x", 1) == 1)
    for (;;) pause();
}
"""


def test_a_probe_that_says_half_of_what_it_has_to_say_can_be_given_up(folder, mount):
    (folder / "half.c").write_text(HALF_A_FRAME)
    output_of("cc", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", folder / "half.c")
    checkpoint = write(folder / "m.safetensors", TENSORS)
    mounted = mount(checkpoint.path, environment={"LD_LIBRARY_PATH": str(folder)})
    writer = Writer(mounted, "load cuda:0 small\n", handled=[signal.SIGINT])
    wait_until(lambda: run("ps", "-o", "pid=", "--ppid", str(mounted.pid)).stdout, "the probe")
    writer.kill(signal.SIGINT)
    assert writer.finish() == "EINTR"
    assert_mount_reads(mounted, checkpoint)
    os.kill(mounted.pid, signal.SIGTERM)
    mounted.wait_for_end()

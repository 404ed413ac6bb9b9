"""A process that cannot attach to a GPU's memory is told which difference keeps it from it."""

import errno
import json
import os
import re
import signal
import sys

import pytest

from attached_process import Raised
from checkpoints import tensor, write
from daemon import AS_OTHER_USER, IS_ROOT, OTHER_GID, OTHER_UID, SYSTEM_PYTHON, run, wait_for_end
from expected import environment
from safetensorfs import Mount, MountError, TensorInfo, load_file
from safetensorfs.cuda_access import check_access
from safetensorfs.handle import open_handle

GPU_0 = "GPU-513a1a7e-d00d-4000-8000-00000000c000"  # as the simulation calls its devices
GPU_1 = "GPU-513a1a7e-d00d-4000-8000-00000000c001"
AS_ROOT = pytest.mark.skipif(not IS_ROOT, reason="only root can have another user or namespace")


@pytest.fixture
def model(folder, gpu_mounting):
    return gpu_mounting(write(folder / "m.safetensors", [tensor("a", "F32", (9,))]).path)


@pytest.fixture
def loaded(model):
    Mount(model).load("cuda:0", "*")
    return model


def refusal(client, mounted, device="cuda:0"):
    """What load_file() and attach() both say, without the mount's path."""
    said = set()
    for code in "load_file(path, device, 'cai')", "Mount(path).attach(device, 'a', 'cai')":
        with pytest.raises(Raised) as caught:
            client.do(code, path=mounted.path, device=device)
        assert caught.value.kind == "MountError"
        said.add((caught.value.errno, str(caught.value).removeprefix(f"{mounted.path}: ")))
    (error,) = said
    return error


def handle_of(mounted):
    return json.loads((mounted / ".devices/cuda:0/handles/a").read_text())


def assert_free(mounted, simulation, client):
    """A refusal leaves neither a lease nor a context."""
    assert Mount(mounted).devices()["cuda:0"]["leases"] == 0
    assert all(sum(p.context) == 0 for p in simulation.processes() if p.pid == client.pid)


def test_memory_that_cannot_be_shared(model, processes, simulation):
    simulation.configure(ipc=False)
    Mount(model).load("cuda:0", "*")
    reason = handle_of(model)["reason"]
    client = processes()
    assert refusal(client, model) == (
        errno.EOPNOTSUPP, f"memory of cuda:0 cannot be shared with other processes: {reason}"
    )  # fmt: skip
    assert_free(model, simulation, client)


@AS_ROOT
def test_another_pid_namespace(loaded, processes, simulation):
    client = processes("unshare", "--pid", "--fork", "--kill-child")
    number, sentence = refusal(client, loaded)
    inside = client.tell("os.stat('/proc/self/ns/pid').st_ino")
    outside = os.stat("/proc/self/ns/pid").st_ino
    assert (number, sentence) == (
        errno.EPERM,
        f"the worker that holds cuda:0 is in PID namespace {outside}, this process in {inside}, "
        "and CUDA shares memory within one namespace only; in Kubernetes: "
        "shareProcessNamespace: true",
    )
    assert_free(loaded, simulation, client)


def as_other_user(mounted, simulation):
    script = (
        "import sys, types\n"
        # Another user's Python may have no NumPy; what is asked here needs none.
        "sys.modules['numpy'] = types.ModuleType('numpy')\n"
        "from safetensorfs import Mount\n"
        f"Mount({str(mounted.path)!r}).attach('cuda:0', 'a', 'cai')\n"
    )
    variables = environment(**simulation.environment())
    return run(*AS_OTHER_USER, SYSTEM_PYTHON, "-B", "-c", script, env=variables).stderr


@AS_ROOT
def test_another_user(folder, gpu_mounting, simulation):
    path = write(folder / "m.safetensors", [tensor("a")]).path
    mounted = gpu_mounting(path, options=f"allow_other,gid={OTHER_GID}")
    Mount(mounted).load("cuda:0", "*")
    assert as_other_user(mounted, simulation).splitlines()[-1] == (
        f"safetensorfs.errors.MountError: {mounted.path}: the worker that holds cuda:0 runs as "
        f"user 0, this process as user {OTHER_UID}, and CUDA shares memory within one user only: "
        f"run as user 0, or have root mount with -o uid={OTHER_UID}"
    )


@AS_ROOT
def test_a_user_who_may_not_read_handles(folder, gpu_mounting, simulation):
    path = write(folder / "m.safetensors", [tensor("a")]).path
    mounted = gpu_mounting(path, options="allow_other")
    Mount(mounted).load("cuda:0", "*")
    assert as_other_user(mounted, simulation).splitlines()[-1] == (
        f"safetensorfs.errors.MountError: {mounted.path}: handle of 'a' on cuda:0: Permission "
        "denied; only the user who mounted it attaches, and the group given with -o gid="
    )


def test_a_worker_that_has_ended(loaded):
    handle = handle_of(loaded)
    check_access(loaded.path, handle)
    pidfd = os.pidfd_open(handle["pid"])
    os.kill(handle["pid"], signal.SIGKILL)
    wait_for_end(pidfd)
    os.close(pidfd)
    with pytest.raises(MountError) as caught:
        check_access(loaded.path, handle)
    assert caught.value.errno == errno.ESRCH
    assert str(caught.value) == (
        f"{loaded.path}: the worker that held cuda:0, pid {handle['pid']}, has ended, and what was "
        "loaded is gone: load it again"
    )


def test_a_process_that_has_the_number_of_the_worker_that_has_ended(loaded):
    handle = handle_of(loaded)
    handle["pid_start_ticks"] -= 1
    with pytest.raises(MountError, match="has ended"):
        check_access(loaded.path, handle)


def test_a_device_that_is_not_visible(loaded, processes, simulation):
    for setting, shown in (("1", GPU_1), ("", "no device"), (GPU_1, GPU_1)):
        client = processes(CUDA_VISIBLE_DEVICES=setting)
        assert refusal(client, loaded) == (
            errno.ENODEV,
            f"device {GPU_0} is not visible to this process: CUDA_VISIBLE_DEVICES is {setting!r}, "
            f"and CUDA shows {shown}",
        )
        assert_free(loaded, simulation, client)


def test_a_device_that_is_not_visible_is_not_loaded(model, processes):
    client = processes(CUDA_VISIBLE_DEVICES="1")
    with pytest.raises(Raised, match="is not visible to this process"):
        client.do("load_file(path, 'cuda:0', 'cai')", path=model.path)
    assert Mount(model).devices()["cuda:0"]["loaded_tensors"] == 0


def test_a_machine_that_has_other_devices(loaded, processes, simulation):
    simulation.configure(uuid_0="11" * 16)
    assert refusal(processes(), loaded) == (
        errno.ENODEV,
        f"device {GPU_0} is not visible to this process: CUDA_VISIBLE_DEVICES is not set, and CUDA "
        f"shows GPU-11111111-1111-1111-1111-111111111111, {GPU_1}",
    )


def test_no_driver(loaded, processes, folder):
    (folder / "lib").mkdir()
    (folder / "lib/libcuda.so.1").write_text("INPUT ( nothing )")
    number, sentence = refusal(processes(LD_LIBRARY_PATH=str(folder / "lib")), loaded)
    assert number == errno.ENODEV
    assert re.fullmatch(
        r"cannot attach: this process finds no NVIDIA driver \(.*libcuda\.so\.1: .*\); a container "
        "needs to be started with GPUs, as by `docker run --gpus all`",
        sentence,
    )


def test_a_driver_that_does_not_start(loaded, processes, simulation):
    simulation.configure(init_error=803)
    assert refusal(processes(), loaded) == (
        errno.EIO,
        "cannot attach: cuInit failed with CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: system has "
        "unsupported display driver / cuda driver combination (803)",
    )


@pytest.mark.parametrize(
    "call, name, text",
    [
        ("cuIpcOpenMemHandle_v2:1", "CUDA_ERROR_INVALID_VALUE", "invalid argument"),
        ("cuDevicePrimaryCtxRetain:2", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
        ("cuCtxSetCurrent:4711", None, None),
    ],
)
def test_whatever_else_the_driver_refuses(loaded, processes, simulation, call, name, text):
    client = processes()
    simulation.configure(fail_call=call)
    function, code = call.split(":")
    said = f"{name}: {text}" if name else "an unknown error"
    assert refusal(client, loaded) == (
        errno.EIO, f"cannot attach: {function} failed with {said} ({code})"
    )  # fmt: skip
    assert_free(loaded, simulation, client)
    simulation.configure(fail_call=None)
    client.do("array = load_file(path, 'cuda:0', 'cai')['a']")
    assert client.tell("bytes_on_device(array)") == (loaded / "a").read_bytes()


def test_a_driver_that_cannot_open_memory_is_asked_once_per_attach(loaded, processes, simulation):
    client = processes()
    simulation.configure(ipc=False)
    _, sentence = refusal(client, loaded)
    assert sentence == (
        "cannot attach: cuIpcOpenMemHandle_v2 failed with CUDA_ERROR_NOT_SUPPORTED: operation not "
        "supported (801)"
    )
    assert simulation.counters()["call.cuIpcOpenMemHandle_v2"] == 2


def test_a_device_that_the_daemon_does_not_have(model, processes):
    client = processes()
    with pytest.raises(Raised) as caught:
        client.do("Mount(path).attach('cuda:9', 'a', 'cai')", path=model.path)
    assert (caught.value.kind, caught.value.errno) == ("MountError", errno.ENODEV)
    assert str(caught.value) == f"{model.path}: has no device cuda:9, only cpu, cuda:0, cuda:1"
    with pytest.raises(Raised) as caught:
        client.do("load_file(path, 'cuda:9', 'cai')")
    assert (caught.value.kind, caught.value.errno) == ("CommandError", errno.ENODEV)
    assert "cuda:9" in str(caught.value)


def test_frameworks_that_cannot_be(model):
    for attempt in (
        lambda framework: load_file(model, "cuda:0", framework),
        lambda framework: Mount(model).attach("cuda:0", "a", framework),
    ):
        with pytest.raises(ValueError) as caught:
            attempt("np")
        assert str(caught.value) == (
            'framework="np" cannot hold what is on cuda:0: NumPy arrays are in the memory of the '
            'CPU; there are "pt", "cp" and "cai", or device="cpu"'
        )
        with pytest.raises(ValueError) as caught:
            attempt("tf")
        assert str(caught.value) == 'framework on cuda:0 is "pt", "cp" or "cai", not \'tf\''


def test_modules_that_are_not_installed(model, monkeypatch):
    for framework, module, name in ("pt", "torch", "PyTorch"), ("cp", "cupy", "CuPy"):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=f'framework="{framework}" needs {name}: '):
            load_file(model, "cuda:0", framework)


def test_a_handle_of_a_later_daemon(folder):
    handles = folder / ".devices/cuda:0/handles"
    handles.mkdir(parents=True)
    (handles / "a").write_text('{"version": 2}')
    with pytest.raises(MountError) as caught:
        open_handle(str(folder), "cuda:0", TensorInfo("a", "a", "U8", (1,), 1, "", 0))
    assert str(caught.value) == (
        f"{folder}: its handles have version 2, this client reads version 1: install the client "
        "that came with the daemon"
    )

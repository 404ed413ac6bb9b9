"""Devices that are looked for once somebody asks for one; their slabs, and how they are lost."""

import contextlib
import errno
import json
import os
import signal
import stat
import subprocess

import pytest

from checkpoints import tensor, write
from commands import command, control_of, refusal, report, status, wait_until
from daemon import DEADLINE, OTHER_GID, foreground, make_mountpoint, output_of, run, unmounting
from finding import Finding

NAMES = ["h.0", "h.1", "h.2", "h.3"]
NO_DRIVER = "no driver: libtest.so cannot be loaded"


@pytest.fixture
def checkpoint(folder):
    return write(folder / "m.safetensors", [tensor(name) for name in NAMES])


@pytest.fixture
def finding(folder, mount):
    """Ends before the mount does, which then waits for nobody."""
    with Finding(folder) as finding:
        yield finding


@pytest.fixture
def fresh(checkpoint, finding, mount):
    """Nobody has asked for a device yet, and a thread that waits would stop everything."""
    return mount(checkpoint.path, program=finding.program, options="max_threads=1")


@pytest.fixture
def model(fresh, finding):
    """With the device gpu, and everything loaded on it."""
    with waiting("stat", fresh / ".devices/gpu"):
        finding.await_run()
        finding.answer("gpu")
    command(fresh, "load gpu *")
    return fresh


@contextlib.contextmanager
def waiting(*words, code=0):
    """A program that runs until the daemon lets it; then its exit status is `code`."""
    words = [os.fspath(word) for word in words]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
        process.output, process.errors = process.communicate(timeout=DEADLINE)
        assert process.returncode == code, process.errors
    finally:
        process.kill()
        process.wait()


def names_of(devices):
    return [device["name"] for device in devices]


def slabs_of(mounted):
    return mounted / ".devices/gpu/slabs"


def tensors_in(text):
    return [entry["name"] for entry in json.loads(text)["tensors"]]


def errno_of(action, *arguments):
    with pytest.raises(OSError) as refused:
        action(*arguments)
    return refused.value.errno


def test_nothing_but_an_unknown_device_is_looked_for(fresh, finding):
    output_of("ls", "-laR", fresh)
    output_of("stat", fresh / ".devices", fresh / ".devices/cpu/..")
    output_of("ls", "-laR", fresh / ".devices/cpu")
    command(fresh, "load cpu *", "verify cpu", "help")
    os.unlink(fresh / ".devices/cpu/data/h.0")
    assert refusal(fresh, "load cpu nothing")[0] == "ENOENT"
    assert names_of(status(fresh)["devices"]) == ["cpu"]
    assert not finding.has_begun()


def test_a_lookup_waits_and_everything_else_goes_on(fresh, finding, checkpoint):
    # The kernel may keep lookups of other names waiting, but not of those that it has.
    os.stat(fresh / ".devices/cpu")
    with waiting("stat", fresh / ".devices/gpu") as first:
        finding.await_run()
        with waiting("cat", fresh / ".devices/gpu1/info") as second:
            with waiting("ls", fresh / ".devices") as listing:
                assert (fresh / "h.0").read_bytes() == checkpoint["h.0"].data
                assert json.loads((fresh / ".devices/cpu/info").read_bytes())["name"] == "cpu"
                assert names_of(status(fresh)["devices"]) == ["cpu"]
                command(fresh, "load cpu *")
                assert [p.poll() for p in (first, second, listing)] == [None, None, None]
                finding.answer("gpu", "gpu1")
    assert listing.output.split() == ["cpu", "gpu", "gpu1"]
    info = json.loads(second.output)
    assert (info["name"], info["product"]) == ("gpu1", 'Test "1"')
    assert names_of(status(fresh)["devices"]) == ["cpu", "gpu", "gpu1"]
    assert sorted(os.listdir(fresh / ".devices/gpu")) == ["data", "handles", "info", "slabs"]
    assert not (fresh / ".devices/gpu2").exists()
    assert not finding.has_begun()


def test_a_listing_of_the_devices_looks_for_them(fresh, finding):
    with waiting("ls", fresh / ".devices") as listing:
        finding.await_run()
        finding.answer("gpu")
    assert listing.output.split() == ["cpu", "gpu"]


def test_what_was_not_found_is_looked_for_again_by_commands_only(fresh, finding):
    with waiting("stat", fresh / ".devices/gpu", code=1) as lookup:
        finding.await_run()
        finding.answer_nothing(NO_DRIVER)
    assert "No such file" in lookup.errors
    assert not (fresh / ".devices/gpu").exists()
    assert os.listdir(fresh / ".devices") == ["cpu"]
    assert not finding.has_begun()

    with waiting("sh", "-c", f"echo load gpu h.0 > {control_of(fresh)}", code=1):
        finding.await_run()
        finding.answer_nothing(NO_DRIVER)
    assert report(fresh) == f'load gpu: no device "gpu": {NO_DRIVER}; there is cpu\n'
    with waiting("sh", "-c", f"echo load gpu h.0 > {control_of(fresh)}"):
        finding.await_run()
        finding.answer("gpu")
    assert (fresh / ".devices/gpu/data/h.0").read_bytes() == b"t" * 16


def test_a_command_that_is_cancelled_does_not_wait(fresh, finding):
    script = f"echo load gpu h.0 > {control_of(fresh)}"
    with waiting("sh", "-c", script, code=-signal.SIGTERM) as writer:
        finding.await_run()
        writer.terminate()
    assert report(fresh) == "load gpu: cancelled before it began\n"


@pytest.mark.parametrize("ending", ["terminate", "unmount lazily"])
def test_the_end_of_the_mount_answers_who_waits(fresh, finding, ending):
    with waiting("stat", fresh / ".devices/gpu", code=1):
        finding.await_run()
        if ending == "terminate":
            os.kill(fresh.pid, signal.SIGTERM)
        else:
            output_of(*unmounting(fresh.path, lazily=True))
            finding.answer_nothing(NO_DRIVER)
    fresh.wait_for_end()


def test_slabs_list_what_is_loaded_in_them(model):
    handles = model / ".devices/gpu/handles"
    first, second = sorted(os.listdir(slabs_of(model)), key=int)
    path = slabs_of(model) / first
    slab = json.loads(path.read_bytes())
    entry = {"dtype": "U8", "shape": [16], "nbytes": 16}
    assert slab == {
        "version": 1, "device": "gpu", "generation": int(first), "export": "test",
        "tensors": [{"name": "h.0", "offset": 0} | entry, {"name": "h.1", "offset": 256} | entry],
    }  # fmt: skip
    assert tensors_in((slabs_of(model) / second).read_bytes()) == ["h.2", "h.3"]
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o400
    for name in (f"0{first}", "0", "x", "99", f"{first}.json"):
        assert not (slabs_of(model) / name).exists()
    assert errno_of(os.unlink, path) == errno.EROFS
    assert errno_of(os.open, path, os.O_RDWR) in (errno.EROFS, errno.EACCES)

    inode = os.stat(path).st_ino
    assert inode in {entry.inode() for entry in os.scandir(slabs_of(model))}
    for name in ("h.1", "h.0"):
        assert os.stat(path).st_size == len(path.read_bytes())
        os.unlink(model / ".devices/gpu/data" / name)
        assert not (handles / name).exists()
    assert os.listdir(slabs_of(model)) == [second]


def test_the_size_of_a_slab_is_true_on_a_descriptor_too(model):
    path = slabs_of(model) / "1"
    place = os.open(path, os.O_PATH)
    before = os.fstat(place).st_size
    command(model, "unload gpu h.1")
    after = os.fstat(place).st_size
    assert after < before
    with open(f"/proc/self/fd/{place}", "rb", buffering=0) as file:
        text = file.read()
        assert os.fstat(file.fileno()).st_size == len(text) == after
        assert tensors_in(text) == ["h.0"]
        assert len(os.pread(file.fileno(), before, 0)) == after
    command(model, "unload gpu h.0")
    assert errno_of(os.open, f"/proc/self/fd/{place}", os.O_RDONLY) == errno.ESTALE
    os.close(place)


@pytest.mark.parametrize("held", ["slabs/1", "handles/h.0"])
def test_an_open_slab_or_handle_keeps_its_neighbours(model, held):
    # The lease was taken by sh, the descriptor is cat's: who has it is found by its path.
    words = ["sh", "-c", 'exec 3<"$0"; exec cat', model / ".devices/gpu" / held]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdin.write(b"ready\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == b"ready\n"
        assert status(model)["devices"][1]["leases"] == 1
        in_use = f"in use by pid {holder.pid} (cat)"
        assert refusal(model, "unload gpu h.1") == ("EBUSY", f"unload gpu: {in_use}")
        removed = run("rm", "-f", model / ".devices/gpu/data/h.1")
        assert "busy" in removed.stderr
        assert report(model) == f'rm "h.1": {in_use}\n'
        command(model, "unload gpu h.2")
        holder.stdin.close()
    command(model, "unload gpu *")


def test_gid_lets_a_group_attach_to_slabs(checkpoint, finding, mount, other_user):
    mounted = mount(
        checkpoint.path, program=finding.program, options=f"allow_other,gid={OTHER_GID}"
    )
    with waiting("stat", mounted / ".devices/gpu"):
        finding.await_run()
        finding.answer("gpu")
    command(mounted, "load gpu *")
    assert stat.S_IMODE(os.stat(slabs_of(mounted) / "1").st_mode) == 0o440
    assert tensors_in(other_user("cat", slabs_of(mounted) / "1").stdout) == ["h.0", "h.1"]


def test_what_is_lost_is_gone_and_said_to_be_gone(model, finding):
    below = model / ".devices/gpu"
    paths = [below / "data/h.0", below / "handles/h.0", below / "slabs/1"]
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(open(path, "rb", buffering=0)) for path in paths]
        assert [len(os.pread(file.fileno(), 9, 0)) for file in opened] == [9, 9, 9]
        finding.make("die gpu it was killed by signal 9")
        for path, file in zip(paths, opened):
            assert errno_of(os.pread, file.fileno(), 9, 0) == errno.ESTALE
            assert not path.exists()
            assert os.listdir(path.parent) == []
        lost = "lost 4 tensors, 64 bytes: it was killed by signal 9"
        told = status(model)
        assert told["warnings"] == [f"gpu: {lost}"]
        device = told["devices"][1]
        assert device["last_failure"] == lost
        assert (device["loaded_tensors"], device["loaded_nbytes"], device["leases"]) == (0, 0, 0)
        assert json.loads((below / "info").read_bytes())["last_failure"] == lost
        command(model, "load gpu *")
        assert os.listdir(below / "slabs") == ["3", "4"]
        for file in opened:
            assert errno_of(os.pread, file.fileno(), 9, 0) == errno.ESTALE
    command(model, "unload gpu *")


def test_a_load_that_was_running_says_why_it_failed(model, finding):
    command(model, "unload gpu *")
    finding.make("shut gpu")
    with waiting("sh", "-c", f"echo load gpu h.0 > {control_of(model)}", code=1):
        wait_until(lambda: status(model)["loads"], "the load")
        finding.make("die gpu the driver hangs")
        finding.make("open gpu")
    assert report(model) == (
        "load gpu: the device failed and lost what was loaded: the driver hangs\n"
    )


def test_a_loss_is_logged(checkpoint, finding, folder):
    place = make_mountpoint()
    words = (checkpoint.path, place, "-f")
    with foreground(folder, *words, program=finding.program) as process:
        with waiting("stat", os.path.join(place, ".devices/gpu")):
            finding.await_run()
            finding.answer("gpu")
        finding.make("die gpu it was killed")
        line = process.stderr.readline()
        assert line == "safetensorfs: gpu: failed while nothing was loaded: it was killed\n"
        output_of(*unmounting(place))
    os.rmdir(place)

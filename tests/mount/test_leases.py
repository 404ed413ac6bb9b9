"""Handles: what they say, how an open one keeps its tensor loaded, and who may use them."""

import array
import errno
import json
import mmap
import os
import signal
import socket
import stat
import subprocess
import sys

import pytest

from checkpoints import every_dtype, file_name, nbytes, path_of, tensor, write
from commands import (
    DEVICE, command, control_of, cpu_only, data_of, device_of, device_status, handle_of, holds,
    loaded, refusal, report, wait_until,
)  # fmt: skip
from daemon import AS_OTHER_USER, DEADLINE, OTHER_GID, OTHER_UID, output_of, run

NAMES = ["wte", "h.0.w", "h.1.w", "a/b"]


@pytest.fixture
def model(folder, mount):
    """With everything loaded by a command each: a lease keeps a slab, and loads share none."""
    mounted = mount(write(folder / "m.safetensors", [tensor(name) for name in NAMES]).path)
    command(mounted, *[f"load {DEVICE} {name}" for name in NAMES])
    return mounted


OPENS = "import os, sys; descriptor = os.open(sys.argv[1], os.O_RDONLY)"
STAYS = "print('ready', flush=True); sys.stdin.read()"


class Holder:
    """A process that runs Python and says a line once it is done; it ends with its stdin."""

    def __init__(self, program, *words, end=STAYS):
        self.process = subprocess.Popen(
            [sys.executable, "-c", program + "\n" + end, *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.pid = self.process.pid

    def __enter__(self):
        self.said = self.process.stdout.readline().split()
        assert self.said[-1:] == ["ready"]
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(DEADLINE)
        self.process.stdout.close()


def holding(mounted, name="wte"):
    return Holder(OPENS, handle_of(mounted, name))


def program_of(pid):
    with open(f"/proc/{pid}/comm") as file:
        return file.read().rstrip("\n")


def assert_held_by(mounted, *pids, line=f"unload {DEVICE} wte"):
    code, sentence = refusal(mounted, line)
    assert code == "EBUSY"
    for pid in pids:
        assert f"{pid} ({program_of(pid)})" in sentence, sentence
    return sentence


def rm(mounted, name="wte"):
    return run("rm", "-f", os.path.join(os.fsencode(data_of(mounted)), file_name(name)))


def test_an_open_handle_makes_unload_and_rm_busy_and_names_its_holder(model, held_nbytes):
    with holding(model) as holder:
        assert_held_by(model, holder.pid)
        assert report(model).startswith(f"unload {DEVICE}")
        removed = rm(model)
        assert removed.returncode != 0 and "busy" in removed.stderr
        said = report(model)
        assert "rm" in said and "wte" in said and f"{holder.pid} ({program_of(holder.pid)})" in said
        assert holds(model, *NAMES)
        assert device_status(model)["leases"] == 1
        command(model, f"unload {DEVICE} h.0.w", f"load {DEVICE} *", f"verify {DEVICE}")
    command(model, f"unload {DEVICE} wte")
    assert held_nbytes(model) > 0
    command(model, f"unload {DEVICE} *")
    assert held_nbytes(model) == 0


def test_all_holders_are_named(model):
    with holding(model) as one, holding(model) as two, holding(model, "h.0.w") as three:
        assert_held_by(model, one.pid, two.pid)
        assert_held_by(model, one.pid, two.pid, three.pid, line=f"unload {DEVICE} *")
        assert str(three.pid) not in assert_held_by(model, one.pid, two.pid)
    command(model, f"unload {DEVICE} *")


def test_an_unload_of_which_a_part_is_leased_unloads_nothing(model, held_nbytes):
    with holding(model, "a/b") as holder:
        assert_held_by(model, holder.pid, line=f"unload {DEVICE} *")
        assert holds(model, *NAMES)
        assert run("bash", "-c", 'rm -f "$0"/*', data_of(model)).returncode != 0
        assert holds(model, "a/b")
    assert rm(model, "a/b").returncode == 0
    assert held_nbytes(model) == 0


def test_a_thousand_descriptors_are_as_many_leases(model):
    descriptors = [os.open(handle_of(model, "wte"), os.O_RDONLY) for _ in range(1000)]
    assert device_status(model)["leases"] == 1000
    for descriptor in descriptors[1:]:
        os.close(descriptor)
    sentence = assert_held_by(model, os.getpid())
    assert sentence.count(str(os.getpid())) == 1
    os.close(descriptors[0])
    command(model, f"unload {DEVICE} wte")


def test_unload_and_rm_right_after_a_close_work(model):
    for _ in range(100):
        with open(handle_of(model, "wte"), "rb") as file:
            file.read()
        command(model, f"unload {DEVICE} wte", f"load {DEVICE} wte")
    for _ in range(100):
        output_of("cat", handle_of(model, "wte"))
        os.unlink(data_of(model) / "wte")
        command(model, f"load {DEVICE} wte")
    script = '"$1" -c "import sys; open(sys.argv[1]).read()" "$2" && rm "$3"'
    output_of(
        "sh", "-c", script, "sh", sys.executable, handle_of(model, "wte"), data_of(model) / "wte"
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_holder_ends_the_lease(model, number):
    with holding(model) as holder:
        assert_held_by(model, holder.pid)
        os.kill(holder.pid, number)
        holder.process.wait(DEADLINE)
        command(model, f"unload {DEVICE} wte")


FORKS = """
import os, sys
descriptor = os.open(sys.argv[1], os.O_RDONLY)
pid = os.fork()
if pid == 0:
    sys.stdin.read()
    os._exit(0)
print(pid, end=" ")
"""


def test_a_descriptor_inherited_over_fork_keeps_the_lease(model):
    """Whichever of the two goes first."""
    end = "os.close(descriptor); " + STAYS
    with Holder(FORKS, handle_of(model, "wte"), end=end) as parent:
        child = int(parent.said[0])
        assert_held_by(model, child)
        os.kill(parent.pid, signal.SIGKILL)
        parent.process.wait(DEADLINE)
        assert_held_by(model, child)
        os.kill(child, signal.SIGKILL)
    wait_until(lambda: rm(model).returncode == 0, "the end of the child")


def test_the_child_of_a_holder_that_has_ended_is_named(model):
    end = "print('ready', flush=True); os._exit(0)"
    with Holder(FORKS, handle_of(model, "wte"), end=end) as parent:
        parent.process.wait(DEADLINE)
        child = int(parent.said[0])
        sentence = assert_held_by(model, child)
        assert str(parent.pid) not in sentence.replace(str(child), "")
        removed = rm(model)
        assert removed.returncode != 0 and f"{child} (" in report(model)
    wait_until(lambda: rm(model).returncode == 0, "the end of the child")


def test_a_program_that_inherits_the_descriptor_is_named(model):
    script = 'exec 3<"$0"; echo $$; exec sleep 1000'
    words = ["bash", "-c", script, handle_of(model, "wte")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as shell:
        try:
            pid = int(shell.stdout.readline())
            wait_until(lambda: program_of(pid) == "sleep", "exec")
            assert_held_by(model, pid)
        finally:
            shell.kill()
    command(model, f"unload {DEVICE} wte")


def test_a_descriptor_that_was_handed_on_names_who_has_it(model):
    """Over a socket, from an opener that goes on without it."""
    ours, theirs = socket.socketpair()
    receives = (
        "import socket, sys; s = socket.socket(fileno=int(sys.argv[1]));"
        "received = socket.recv_fds(s, 1, 1); "
    )
    process = subprocess.Popen(
        [sys.executable, "-c", receives + STAYS, str(theirs.fileno())],
        pass_fds=[theirs.fileno()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process, ours, theirs:
        descriptor = os.open(handle_of(model, "wte"), os.O_RDONLY)
        ours.sendmsg(
            [b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        )
        os.close(descriptor)
        assert process.stdout.readline() == "ready\n"
        assert_held_by(model, process.pid)
        process.stdin.close()
        process.wait(DEADLINE)
    command(model, f"unload {DEVICE} wte")


def test_a_mapping_of_a_handle_is_a_lease_like_its_descriptor(model):
    with open(handle_of(model, "wte"), "rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
    assert json.loads(mapping[:])["name"] == "wte"
    assert_held_by(model, os.getpid())
    mapping.close()
    command(model, f"unload {DEVICE} wte")


def test_looking_at_a_handle_without_opening_it_is_no_lease(model):
    os.stat(handle_of(model, "wte"))
    place = os.open(handle_of(model, "wte"), os.O_PATH)
    output_of("ls", "-l", device_of(model) / "handles")
    assert device_status(model)["leases"] == 0
    command(model, f"unload {DEVICE} wte")
    os.close(place)


def test_an_open_data_file_is_no_lease(model):
    with open(data_of(model) / "wte", "rb"):
        command(model, f"unload {DEVICE} wte")


@cpu_only
def test_handles_address_the_bytes_of_every_dtype(folder, mount):
    checkpoint = write(
        folder / "m.safetensors",
        [*every_dtype(), tensor("a/b", "F32", (2, 3)), tensor('q"\n☃')],
        residue=5,
    )
    mounted = mount(checkpoint.path)
    command(mounted, f"load {DEVICE} *")
    for t in checkpoint:
        with open(handle_of(mounted, t.name), "rb") as file:
            text = file.read()
            assert os.fstat(file.fileno()).st_size == len(text)
        handle = json.loads(text)
        assert handle["version"] == 1
        assert (handle["export"], handle["device"]) == ("mmap", "cpu")
        assert (handle["name"], handle["dtype"], tuple(handle["shape"])) == (
            t.name,
            t.dtype,
            t.shape,
        )
        assert handle["nbytes"] == len(t.data) == nbytes(t.dtype, t.shape)
        assert os.path.isabs(handle["path"]) and os.path.samefile(handle["path"], checkpoint.path)
        assert handle["offset"] == checkpoint.offsets[t.name]
        with open(handle["path"], "rb") as source:
            with mmap.mmap(source.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapping:
                assert mapping[handle["offset"] :][: handle["nbytes"]] == t.data


def test_a_handle_of_an_earlier_load_is_stale(model):
    place = os.open(handle_of(model, "wte"), os.O_PATH)
    command(model, f"unload {DEVICE} wte")
    with pytest.raises(FileNotFoundError):
        open(handle_of(model, "wte"), "rb")
    command(model, f"load {DEVICE} wte")
    with pytest.raises(OSError) as stale:
        os.open(f"/proc/self/fd/{place}", os.O_RDONLY)
    assert stale.value.errno == errno.ESTALE
    os.close(place)
    command(model, f"unload {DEVICE} wte")


def mode_of(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def modes_of(mounted):
    device = device_of(mounted)
    modes = {
        "control": mode_of(control_of(mounted)), "devices": mode_of(mounted / ".devices"),
        "device": mode_of(device), "info": mode_of(device / "info"),
        "data": mode_of(device / "data"), "data file": mode_of(device / "data/wte"),
        "handles": mode_of(device / "handles"), "handle": mode_of(device / "handles/wte"),
        "slabs": mode_of(device / "slabs"),
    }  # fmt: skip
    # The same can be done with a slab's file as with a handle.
    slabs = {mode_of(slab) for slab in (device / "slabs").iterdir()}
    assert slabs == (set() if DEVICE == "cpu" else {modes["handle"]})
    return modes


MODES = {
    "control": 0o600, "devices": 0o555, "device": 0o555, "info": 0o444, "data": 0o755,
    "data file": 0o644, "handles": 0o555, "handle": 0o400, "slabs": 0o555,
}  # fmt: skip


def test_modes_let_the_owner_command_and_the_others_read(model):
    assert modes_of(model) == MODES


def test_gid_lets_a_group_command_and_attach(folder, mount, other_user):
    checkpoint = write(folder / "m.safetensors", [tensor(name) for name in NAMES])
    mounted = mount(checkpoint.path, options=f"allow_other,gid={OTHER_GID}")
    command(mounted, f"load {DEVICE} wte")
    assert modes_of(mounted) == MODES | {"control": 0o660, "handle": 0o440}
    assert os.stat(control_of(mounted)).st_gid == OTHER_GID
    assert json.loads(other_user("cat", handle_of(mounted, "wte")).stdout)["name"] == "wte"
    script = f'echo "load {DEVICE} h.*" > "$0" && cat "$0"'
    assert other_user("sh", "-c", script, control_of(mounted)).stdout.startswith(
        f"load {DEVICE}: 2 tensors"
    )
    script = 'exec 3<"$0"; echo ready; read x'
    holder = subprocess.Popen(
        [*AS_OTHER_USER, "sh", "-c", script, handle_of(mounted, "h.0.w")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with holder:
        assert holder.stdout.readline() == "ready\n"
        assert_held_by(mounted, holder.pid, line=f"unload {DEVICE} *")
        holder.stdin.close()
    command(mounted, f"unload {DEVICE} *")


def test_umask_and_uid_shape_the_modes_too(folder, mount, other_user):
    checkpoint = write(folder / "m.safetensors", [tensor(name) for name in NAMES])
    mounted = mount(checkpoint.path, options=f"allow_other,uid={OTHER_UID},umask=0077")
    command(mounted, f"load {DEVICE} wte")
    assert modes_of(mounted) == {name: mode & 0o700 for name, mode in MODES.items()}
    script = f'echo "load {DEVICE} h.*" > "$0" && cat "$0" && rm "$1" && cat "$2"'
    result = other_user(
        "sh",
        "-c",
        script,
        control_of(mounted),
        data_of(mounted) / "h.0.w",
        handle_of(mounted, "h.1.w"),
    )
    assert result.returncode == 0, result.stderr
    assert holds(mounted, "wte", "h.1.w")


def test_another_user_reads_data_and_can_neither_command_nor_attach_nor_remove(
    folder, mount, other_user
):
    checkpoint = write(folder / "m.safetensors", [tensor(name) for name in NAMES])
    mounted = mount(checkpoint.path, options="allow_other")
    command(mounted, f"load {DEVICE} *")
    assert other_user("cat", data_of(mounted) / "wte", binary=True).stdout == checkpoint["wte"].data
    info = json.loads(other_user("cat", device_of(mounted) / "info").stdout)
    assert info["loaded_tensors"] == len(NAMES)
    for words in (
        ["sh", "-c", f"echo unload {DEVICE} wte > {control_of(mounted)}"],
        ["cat", control_of(mounted)], ["cat", handle_of(mounted, "wte")],
        ["rm", "-f", data_of(mounted) / "wte"],
        ["sh", "-c", f"echo > {data_of(mounted)}/wte"],
        ["find", data_of(mounted), "-name", "wte", "-delete"],
        ["sh", "-c", f"exec 3<>{control_of(mounted)}"],
    ):  # fmt: skip
        refused = other_user(*words)
        assert refused.returncode != 0 and "Permission denied" in refused.stderr, words
    assert holds(mounted, *NAMES)
    assert loaded(mounted) == {
        os.path.basename(os.fsencode(path_of(mounted, name))) for name in NAMES
    }
    command(mounted, f"unload {DEVICE} *")

"""data/ below a device: what is listed and read there, and that rm unloads."""

import contextlib
import errno
import mmap
import os
import random
import subprocess
import sys

import pytest

from checkpoints import tensor, write
from commands import (
    DEVICE, command, control_of, data_file, data_of, device_of, handle_of, holds, loaded,
    pages_nbytes, read_data,
)  # fmt: skip
from daemon import DEADLINE, output_of, run

SIZES = [100, 5000, 4096, 3, 8192, 0, 12000, 1, 4095, 4097, 40, 40, 40, 20000, 7, 65536, 1, 0, 9]
TENSORS = [tensor(f"t{n}", "U8", (size,)) for n, size in enumerate(SIZES)]
NAMES = [t.name for t in TENSORS]
SLAB_NBYTES = 2 << 20


@pytest.fixture
def model(folder, mount):
    checkpoint = write(folder / "m.safetensors", TENSORS, residue=3)
    return mount(checkpoint.path), checkpoint


def errno_of(action, *arguments):
    with pytest.raises(OSError) as refused:
        action(*arguments)
    return refused.value.errno


def test_data_is_read_at_any_offset(folder, mount):
    checkpoint = write(folder / "m.safetensors", [tensor("t", "U8", (3_000_001,))], residue=1)
    mounted, t = mount(checkpoint.path), checkpoint["t"]
    command(mounted, f"load {DEVICE} t")
    with open(data_file(mounted, "t"), "rb", buffering=0) as file:
        dice = random.Random(1)
        for _ in range(200):
            at, size = dice.randrange(len(t.data) + 100), dice.randrange(300_000)
            assert os.pread(file.fileno(), size, at) == t.data[at:][:size]
        assert os.pread(file.fileno(), 100, 1 << 50) == b""
    copied = output_of(
        "dd", f"if={os.fsdecode(data_file(mounted, 't'))}", "bs=1M", "iflag=direct", binary=True
    )
    assert copied == t.data


def test_what_is_not_loaded_is_not_there(model):
    mounted, _ = model
    assert os.listdir(data_of(mounted)) == os.listdir(device_of(mounted) / "handles") == []
    assert os.listdir(device_of(mounted) / "slabs") == []
    command(mounted, f"load {DEVICE} t1")
    assert os.listdir(device_of(mounted) / "slabs") == ([] if DEVICE == "cpu" else ["1"])
    assert sorted(os.listdir(device_of(mounted))) == ["data", "handles", "info", "slabs"]
    for below in (
        "data/t2",
        "handles/t2",
        "data/nothing",
        "data/.status",
        "data/.control",
        "nothing",
        "data/t1/x",
        "slabs/0",
        "slabs/2",
        "slabs/t1",
    ):
        with pytest.raises((FileNotFoundError, NotADirectoryError)):
            os.stat(device_of(mounted) / below)
    for device in ("cuda:99", "CPU", "cpu:0"):
        assert not (mounted / ".devices" / device).exists()


def test_devices_are_hidden_and_reachable(model):
    mounted, checkpoint = model
    listings = (["ls", "-AR"], ["find"], ["find", "-type", "d"])
    before = [output_of(*words, cwd=mounted.path) for words in listings]
    command(mounted, f"load {DEVICE} *")
    assert before == [output_of(*words, cwd=mounted.path) for words in listings]
    assert ".devices" not in os.listdir(mounted)
    assert DEVICE in os.listdir(mounted / ".devices")
    du = int(output_of("du", "-s", "--apparent-size", "-B1", mounted).split()[0])
    assert du < 2 * sum(SIZES) + 65536
    assert os.path.samefile(data_of(mounted) / "..", device_of(mounted))
    assert os.path.samefile(mounted / ".devices/..", mounted.path)
    assert run("ls", "-laR", mounted / ".devices").stderr == ""


def needed_nbytes(checkpoint, held):
    """What a device needs for these after one load of all: their pages, or the slab they are in."""
    if DEVICE == "cpu":
        return pages_nbytes(checkpoint, held)
    return SLAB_NBYTES if held else 0


def test_rm_unloads(model, held_nbytes):
    mounted, checkpoint = model
    command(mounted, f"load {DEVICE} *")
    output_of("rm", data_of(mounted) / "t1", data_of(mounted) / "t5")
    held = set(NAMES) - {"t1", "t5"}
    assert holds(mounted, *held)
    assert held_nbytes(mounted) == needed_nbytes(checkpoint, held)
    output_of("bash", "-c", 'rm "$0"/t1?', data_of(mounted), stdin=subprocess.DEVNULL)
    held = {name for name in held if len(name) == 2}
    assert holds(mounted, *held)
    assert errno_of(os.unlink, data_file(mounted, "t1")) == errno.ENOENT
    assert (mounted / "t1").read_bytes() == checkpoint["t1"].data
    for name in held:
        os.unlink(data_file(mounted, name))
    assert held_nbytes(mounted) == 0


def test_rm_r_fails_at_the_folder_and_leaves_the_mount_whole(model, held_nbytes):
    mounted, checkpoint = model
    command(mounted, f"load {DEVICE} *")
    removed = run("rm", "-r", data_of(mounted))
    assert removed.returncode != 0 and "data" in removed.stderr
    assert run("rm", "-rf", mounted / ".devices").returncode != 0
    assert holds(mounted) and held_nbytes(mounted) == 0
    command(mounted, f"load {DEVICE} t1")
    assert read_data(mounted, "t1") == checkpoint["t1"].data


@pytest.mark.parametrize(
    "script",
    [
        "find . -type f -delete",
        "rm *",
        "find . -mindepth 1 -print0 | xargs -0 -n 7 rm",
        "rm -r ./*",
    ],
)
def test_removing_hundreds_leaves_none(folder, mount, script, held_nbytes):
    many = [tensor(f"layer.{n}.{'weight' * 12}", "U8", (100,)) for n in range(700)]
    mounted = mount(write(folder / "m.safetensors", many).path)
    command(mounted, f"load {DEVICE} *")
    assert len(loaded(mounted)) == 700
    output_of("bash", "-c", script, cwd=data_of(mounted))
    assert holds(mounted)
    assert held_nbytes(mounted) == 0


def test_rm_in_the_folders_of_two_checkpoints_at_once_works(folder, mount):
    (folder / "models").mkdir()
    for stem in ("one", "two"):
        write(folder / f"models/{stem}.safetensors", [tensor(f"t{n}") for n in range(300)])
    mounted = mount(folder / "models")
    places = [mounted / f"{stem}.tensors" for stem in ("one", "two")]
    for place in places:
        command(place, f"load {DEVICE} *")
    script = 'cd "$0"; for name in *; do rm "$name"; done'
    removers = [
        subprocess.Popen(["bash", "-c", script, data_of(place)], stderr=subprocess.PIPE)
        for place in places
    ]
    assert [remover.communicate(timeout=DEADLINE)[1] for remover in removers] == [b"", b""]
    assert all(holds(place) for place in places)


CHANGES = """
import os, random, select, sys
dice, (control, device) = random.Random(1), sys.argv[1:]
while not select.select([0], [], [], 0)[0]:
    names = " ".join(f"x.{n}" for n in dice.sample(range(200), 60))
    for verb in ("load", "unload"):
        descriptor = os.open(control, os.O_WRONLY)
        os.write(descriptor, f"{verb} {device} {names}\\n".encode())
        os.close(descriptor)
"""


@contextlib.contextmanager
def changing(mounted):
    """Another process loads and unloads tensors named x.* all the time."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHANGES, control_of(mounted), DEVICE], stdin=subprocess.PIPE
    )
    try:
        yield
    finally:
        child.stdin.close()
        assert child.wait(DEADLINE) == 0


def test_a_listing_is_right_while_commands_change_it(folder, mount, held_nbytes):
    names = [f"{kind}.{n}" for n in range(200) for kind in ("stays", "x")]
    checkpoint = write(
        folder / "m.safetensors", [tensor(name, "U8", (n % 50,)) for n, name in enumerate(names)]
    )
    mounted = mount(checkpoint.path)
    command(mounted, f"load {DEVICE} stays.*")
    staying = {name for name in names if name.startswith("stays")}
    with changing(mounted):
        for _ in range(100):
            found = os.listdir(data_of(mounted))
            assert len(set(found)) == len(found)
            assert staying <= set(found) <= set(names)
        for _ in range(5):
            shown = output_of("find", data_of(mounted), "-name", "stays.*", "-printf", "x")
            assert len(shown) == 200
            assert read_data(mounted, "stays.7") == checkpoint["stays.7"].data
            for name in ("x.3", "x.190"):
                with contextlib.suppress(OSError):
                    assert read_data(mounted, name) == checkpoint[name].data
    command(mounted, f"unload {DEVICE} *")
    assert held_nbytes(mounted) == 0


def test_an_open_descriptor_never_reads_another_load(model):
    mounted, checkpoint = model
    t = checkpoint["t13"]
    command(mounted, f"load {DEVICE} t13")
    with open(data_file(mounted, "t13"), "rb", buffering=0) as before:
        assert os.pread(before.fileno(), 100, 50) == t.data[50:150]
        first = os.fstat(before.fileno()).st_ino
        command(mounted, f"unload {DEVICE} t13")
        assert errno_of(os.pread, before.fileno(), 100, 50) == errno.ESTALE
        command(mounted, f"load {DEVICE} t1 t13")
        assert errno_of(os.pread, before.fileno(), 100, 50) == errno.ESTALE
        assert read_data(mounted, "t13") == t.data
        assert os.stat(data_file(mounted, "t13")).st_ino != first
    for _ in range(20):
        command(mounted, f"unload {DEVICE} t13", f"load {DEVICE} t13")
        assert read_data(mounted, "t13") == t.data


def test_data_can_not_be_written_created_or_renamed(model):
    mounted, _ = model
    command(mounted, f"load {DEVICE} t1 t2")
    one, new = data_file(mounted, "t1"), data_file(mounted, "new")
    for action in (
        lambda: os.open(one, os.O_WRONLY), lambda: os.open(one, os.O_RDWR),
        lambda: os.truncate(one, 0), lambda: os.open(new, os.O_WRONLY | os.O_CREAT),
        lambda: os.open(one, os.O_RDONLY | os.O_TRUNC), lambda: os.rename(one, new),
        lambda: os.link(one, new), lambda: os.symlink("x", new), lambda: os.mkdir(new),
        lambda: os.chmod(one, 0o777), lambda: os.rename(data_file(mounted, "t2"), one),
        lambda: os.unlink(handle_of(mounted, "t1")),
        lambda: os.mkdir(device_of(mounted) / "slabs/99"),
        lambda: os.unlink(device_of(mounted) / "info"), lambda: os.rmdir(data_of(mounted)),
        lambda: os.rmdir(mounted / ".devices"), lambda: os.unlink(mounted / "t1"),
        lambda: os.open(device_of(mounted) / "info", os.O_WRONLY),
        lambda: os.rename(mounted / "t3", new),
    ):  # fmt: skip
        assert errno_of(action) in (errno.EROFS, errno.EPERM, errno.EACCES, errno.EBUSY)
    assert holds(mounted, "t1", "t2")


def test_data_may_be_mapped_privately_or_says_that_it_can_not(model):
    mounted, checkpoint = model
    command(mounted, f"load {DEVICE} t13")
    with open(data_file(mounted, "t13"), "rb") as file:
        for flags in (mmap.MAP_PRIVATE, mmap.MAP_SHARED):
            try:
                with mmap.mmap(file.fileno(), 0, flags, mmap.PROT_READ) as mapping:
                    assert mapping[:] == checkpoint["t13"].data
            except OSError as error:
                assert error.errno == errno.ENODEV

"""What a mount does when its source is replaced, rewritten, cut, removed, or cannot be mapped."""

import contextlib
import errno
import json
import mmap
import os
import random
import subprocess

import numpy
import pytest

from checkpoints import blob, tensor, write, write_sharded
from daemon import BINARY, DEADLINE, make_mountpoint, run

DIRECT_IO_SERVER = os.environ.get(
    "DIRECT_IO_SERVER", os.path.join(os.path.dirname(BINARY), "direct_io_server")
)
MIB = 1 << 20
TENSORS = [blob(f"t{n}", random.Random(n).randbytes(2 * MIB + n)) for n in range(4)]


@pytest.fixture
def model(folder, mount):
    checkpoint = write(folder / "model.safetensors", TENSORS)
    return mount(checkpoint.path), checkpoint


def warnings_of(mounted):
    return json.loads((mounted / ".status").read_bytes())["warnings"]


def errno_of(action, *arguments):
    with pytest.raises(OSError) as refused:
        action(*arguments)
    return refused.value.errno


def touch_later(path):
    moment = os.stat(path).st_mtime_ns + 1_000_000_000
    os.utime(path, ns=(moment, moment))


def assert_serves(mounted, tensors):
    for t in tensors:
        assert (mounted / t.name).read_bytes() == t.data


def test_a_source_replaced_by_rename_is_served_as_it_was(model):
    mounted, checkpoint = model
    original = checkpoint.path.read_bytes()
    write(checkpoint.path.with_suffix(".new"), [tensor("other")])
    os.replace(checkpoint.path.with_suffix(".new"), checkpoint.path)
    (warning,) = warnings_of(mounted)
    assert str(checkpoint.path) in warning and "replaced" in warning
    assert_serves(mounted, TENSORS)
    assert (mounted / ".all.safetensors").read_bytes() == original
    assert numpy.load(mounted / ".npy/t3.npy").tobytes() == TENSORS[3].data


def test_a_source_removed_is_served_as_it_was(model):
    mounted, checkpoint = model
    checkpoint.path.unlink()
    assert len(warnings_of(mounted)) == 1
    assert_serves(mounted, TENSORS)


@pytest.mark.parametrize("change", ["rewritten", "grown", "touched"])
def test_a_source_changed_in_place_refuses_new_opens(model, change):
    mounted, checkpoint = model
    with open(mounted / "t0", "rb", buffering=0) as opened_before:
        if change == "rewritten":
            with open(checkpoint.path, "r+b") as file:
                file.seek(-5, os.SEEK_END)
                file.write(b"other")
            touch_later(checkpoint.path)
        elif change == "grown":
            with open(checkpoint.path, "ab") as file:
                file.write(b"more")
        else:
            touch_later(checkpoint.path)
        for name in ("t0", "t3", ".npy/t0.npy", ".all.safetensors"):
            assert errno_of(open, mounted / name, "rb") == errno.ESTALE, name
        assert opened_before.read() == TENSORS[0].data
    (warning,) = warnings_of(mounted)
    assert str(checkpoint.path) in warning and "changed" in warning
    assert os.stat(mounted / "t0").st_size == len(TENSORS[0].data)
    assert run("ls", "-la", mounted).returncode == 0


def test_a_source_cut_in_place_gives_eio_past_its_end_and_the_rest_stays(model):
    mounted, checkpoint = model
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(mounted / t.name, "rb", buffering=0)) for t in TENSORS]
        direct = os.open(mounted / "t2", os.O_RDONLY | os.O_DIRECT)
        stack.callback(os.close, direct)
        os.truncate(checkpoint.path, checkpoint.offsets["t2"] + MIB + 100)
        assert files[0].read() == TENSORS[0].data
        assert os.pread(files[1].fileno(), 4096, MIB) == TENSORS[1].data[MIB:][:4096]
        assert os.pread(files[2].fileno(), 4096, 0) == TENSORS[2].data[:4096]
        # Of the page in which the source ends by now, whose rest is mapped as zeros.
        assert errno_of(os.pread, direct, 200, MIB) == errno.EIO
        assert errno_of(os.pread, files[2].fileno(), 4096, 2 * MIB - 8192) == errno.EIO
        assert errno_of(os.pread, files[3].fileno(), 4096, 0) == errno.EIO
        assert errno_of(open, mounted / "t0", "rb") == errno.ESTALE
        assert run("cat", mounted / "t3").returncode != 0
        assert len(warnings_of(mounted)) == 1
    assert os.path.ismount(mounted.path)


def test_a_source_cut_to_nothing_leaves_the_daemon_alive(model):
    mounted, checkpoint = model
    with open(mounted / "t0", "rb", buffering=0) as file:
        os.truncate(checkpoint.path, 0)
        assert errno_of(file.read, 10) == errno.EIO
    for name in ("t0", ".all.safetensors", ".npy/t1.npy"):
        assert errno_of(open, mounted / name, "rb") == errno.ESTALE
    assert len(os.listdir(mounted)) > len(TENSORS)
    assert json.loads((mounted / ".index.json").read_bytes())["version"] == 1
    mounted.unmount()


def test_a_mapping_past_the_new_end_hurts_the_reader_alone(model):
    mounted, checkpoint = model
    with open(mounted / "t3", "rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
        os.truncate(checkpoint.path, 4096)
        child = os.fork()
        if child == 0:
            os._exit(mapping[MIB] and 0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        mapping.close()
    assert os.path.ismount(mounted.path)
    assert warnings_of(mounted)


def test_a_shard_that_changes_spoils_only_its_own_tensors(folder, mount):
    index, shards = write_sharded(folder, [TENSORS[:2], TENSORS[2:]])
    mounted = mount(index)
    touch_later(shards[0].path)
    assert errno_of(open, mounted / "t0", "rb") == errno.ESTALE
    assert_serves(mounted, TENSORS[2:])
    (warning,) = warnings_of(mounted)
    assert shards[0].path.name in warning


def test_a_checkpoint_of_a_folder_that_changes_spoils_only_itself(folder, mount):
    (folder / "model").mkdir()
    one = write(folder / "model/one.safetensors", TENSORS[:2])
    write(folder / "model/two.safetensors", TENSORS[2:])
    mounted = mount(folder / "model")
    touch_later(one.path)
    assert errno_of(open, mounted / "one.tensors/t0", "rb") == errno.ESTALE
    assert_serves(mounted / "two.tensors", TENSORS[2:])
    said = warnings_of(mounted) + warnings_of(mounted / "one.tensors")
    assert any("one.safetensors" in warning for warning in said)


@pytest.fixture
def unmappable(folder):
    """A source on a filesystem that refuses shared mappings."""
    checkpoint = write(folder / "model.safetensors", TENSORS, residue=3)
    place = make_mountpoint()
    with subprocess.Popen(
        [DIRECT_IO_SERVER, checkpoint.path, place], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout.readline() == "ready\n"
            yield os.path.join(place, "model.safetensors")
        finally:
            server.terminate()
            server.wait(DEADLINE)
            os.rmdir(place)


def test_a_source_that_cannot_be_mapped_is_served_all_the_same(unmappable, mount):
    with open(unmappable, "rb") as file, pytest.raises(OSError):
        mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
    mounted = mount(unmappable)
    assert_serves(mounted, TENSORS)
    for t in TENSORS:
        path = mounted / f".npy/{t.name}.npy"
        assert numpy.load(path, mmap_mode="r").tobytes() == t.data
        with open(mounted / t.name, "rb") as file:
            assert os.pread(file.fileno(), 5000, MIB - 7) == t.data[MIB - 7 :][:5000]
            with mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as shared:
                assert shared[:] == t.data
    with open(unmappable, "rb") as file:
        assert (mounted / ".all.safetensors").read_bytes() == file.read()
    mounted.unmount()


def test_a_source_that_shrinks_during_reads_never_ends_the_daemon(folder, mount):
    """Reads of header and data together, which libfuse copies, race with a truncation."""
    checkpoint = write(folder / "model.safetensors", [blob("t", bytes(3000))])
    mounted = mount(checkpoint.path)
    size = os.path.getsize(checkpoint.path)
    # Opened before: later it would be ESTALE.
    descriptor = os.open(mounted / ".npy/t.npy", os.O_RDONLY | os.O_DIRECT)
    stop, stopped = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(stopped)
        os.set_blocking(stop, False)
        while True:
            os.truncate(checkpoint.path, 0)
            os.truncate(checkpoint.path, size)
            try:
                if os.read(stop, 1) == b"":
                    os._exit(0)
            except BlockingIOError:
                pass
    os.close(stop)
    buffer = mmap.mmap(-1, 4096)
    for _ in range(20_000):
        with contextlib.suppress(OSError):
            os.preadv(descriptor, [buffer], 0)
    os.close(descriptor)
    os.close(stopped)
    assert os.waitpid(child, 0)[1] == 0
    assert warnings_of(mounted)


def test_what_is_loaded_of_a_changed_source_cannot_be_opened(model):
    mounted, checkpoint = model
    (mounted / ".control").write_text("load cpu t1\n")
    data, handle = (mounted / ".devices/cpu" / part / "t1" for part in ("data", "handles"))
    assert data.read_bytes() == TENSORS[1].data
    touch_later(checkpoint.path)
    assert errno_of(data.read_bytes) == errno.ESTALE
    assert errno_of(handle.read_bytes) == errno.ESTALE

"""Generated files are whole for every tool, while they change and are opened over and over."""

import concurrent.futures
import contextlib
import io
import json
import mmap
import os
import subprocess
import sys
import tarfile

import pytest

from checkpoints import tensor, write
from daemon import DEADLINE, output_of, scratch

GENERATED = [".status", ".summary", ".index.json"]

# Opens, measures and reads a file until its stdin ends; fails at the first torn view.
HAMMER = """
import os, select, sys
while not select.select([0], [], [], 0)[0]:
    for path in sys.argv[1:]:
        descriptor = os.open(path, os.O_RDONLY)
        size = os.fstat(descriptor).st_size
        data = b"".join(iter(lambda: os.read(descriptor, 65536), b""))
        os.close(descriptor)
        assert len(data) == size > 0, (path, len(data), size)
"""


@contextlib.contextmanager
def hammering(*paths, processes=3):
    hammers = [
        subprocess.Popen([sys.executable, "-c", HAMMER, *paths], stdin=subprocess.PIPE)
        for _ in range(processes)
    ]
    try:
        yield
    finally:
        for hammer in hammers:
            hammer.stdin.close()
        results = [hammer.wait(DEADLINE) for hammer in hammers]
    assert results == [0] * processes


@pytest.fixture
def model(folder, mount):
    checkpoint = write(
        folder / "model.safetensors", [tensor(f"layer.{n}.weight") for n in range(2000)]
    )
    return mount(checkpoint.path), checkpoint


class Flapping:
    """A source that is now itself and now another file, so that .status has something to say."""

    def __init__(self, path):
        self.path, self.turn = path, 0
        self.original = path.with_suffix(".original")
        os.link(path, self.original)

    def flap(self):
        self.turn += 1
        new = self.path.with_suffix(".new")
        if self.turn % 2:
            write(new, [tensor("another")])
        else:
            os.link(self.original, new)
        os.replace(new, self.path)


def test_status_is_json_that_names_the_source_and_warnings(model):
    mounted, checkpoint = model
    status = json.loads((mounted / ".status").read_bytes())
    assert os.path.samefile(status["source"], checkpoint.path)
    assert status["warnings"] == []


@pytest.mark.parametrize("name", GENERATED)
def test_tools_get_whole_files_while_others_open_them(model, folder, name):
    mounted, checkpoint = model
    path = mounted / name
    flapping = Flapping(checkpoint.path)
    complete = json.loads if name != ".summary" else lambda data: data.index(b"layer.1999.weight")
    with hammering(path):
        for _ in range(6):
            flapping.flap()
            output_of("cp", path, folder / "copy")
            complete((folder / "copy").read_bytes())
            output_of("rsync", "-I", path, folder / "synced")
            complete((folder / "synced").read_bytes())
            archive = output_of("tar", "-C", mounted, "-cf", "-", name, binary=True)
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                complete(tar.extractfile(name).read())
            assert int(output_of("wc", "-c", path).split()[0]) > 0
            if name != ".summary":
                assert output_of("jq", "-r", "type", path) == "object\n"
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                with mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as shared:
                    complete(shared[:])
                    assert len(shared) == size


def test_an_open_status_stays_as_it_was_opened(model):
    mounted, checkpoint = model
    flapping = Flapping(checkpoint.path)
    with open(mounted / ".status", "rb", buffering=0) as before:
        flapping.flap()
        assert json.loads(before.read())["warnings"] == []
        after = json.loads((mounted / ".status").read_bytes())
        assert len(after["warnings"]) == 1
        before.seek(0)
        assert json.loads(before.read())["warnings"] == []
    flapping.flap()
    assert json.loads((mounted / ".status").read_bytes())["warnings"] == []


def test_the_inode_number_of_status_does_not_change(model):
    mounted, checkpoint = model
    flapping = Flapping(checkpoint.path)
    numbers = set()
    for _ in range(10):
        flapping.flap()
        numbers.add(os.stat(mounted / ".status").st_ino)
        with open(mounted / ".status", "rb") as file:
            numbers.add(os.fstat(file.fileno()).st_ino)
    with os.scandir(mounted) as entries:
        numbers |= {entry.inode() for entry in entries if entry.name == ".status"}
    assert len(numbers) == 1


def test_many_descriptors_at_once_each_hold_a_whole_file(model):
    mounted, checkpoint = model
    flapping = Flapping(checkpoint.path)
    with contextlib.ExitStack() as stack:
        files = []
        for _ in range(200):
            flapping.flap()
            files.append(stack.enter_context(open(mounted / ".status", "rb")))
        for file in reversed(files):
            assert os.fstat(file.fileno()).st_size == len(file.read())
            file.seek(0)
            json.load(file)


def test_the_first_readers_of_a_fresh_mount_all_get_the_whole_index(mount):
    with scratch() as folder:
        checkpoint = write(folder / "m.safetensors", [tensor(f"t{n}") for n in range(5000)])
        mounted = mount(checkpoint.path)
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            texts = list(pool.map(lambda _: (mounted / ".index.json").read_bytes(), range(16)))
        assert len(set(texts)) == 1
        assert len(json.loads(texts[0])["tensors"]) == 5000
        mounted.unmount()

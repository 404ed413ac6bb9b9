"""A directory of very many tensors lists completely, each once, however it is read."""

import collections
import ctypes
import itertools
import json
import os
import random

import pytest

from checkpoints import frame
from daemon import LISTED_DOT_FILES, Mount, output_of, scratch

COUNT = 600_000 if os.environ.get("SAFETENSORFS_BIG") == "1" else 20_000
DOT_FILES = len(LISTED_DOT_FILES)
LIBC = ctypes.CDLL(None, use_errno=True)


@pytest.fixture(scope="module")
def many():
    """COUNT tensors of one byte whose names share long prefixes."""
    names = [f"model.layers.{n % 80}.experts.{n // 80}.weight" for n in range(COUNT)]
    header = {
        name: {"dtype": "U8", "shape": [1], "data_offsets": [n, n + 1]}
        for n, name in enumerate(names)
    }
    data = random.Random(1).randbytes(COUNT)
    with scratch() as folder:
        path = folder / "many.safetensors"
        path.write_bytes(frame(json.dumps(header), data))
        with Mount(path) as mounted:
            yield mounted, names, data


def batch(descriptor, size=4096):
    """One getdents64: [(name, cookie of the next entry)]; empty at the end."""
    buffer = ctypes.create_string_buffer(size)
    count = LIBC.getdents64(descriptor, buffer, ctypes.c_size_t(size))
    assert count >= 0, os.strerror(ctypes.get_errno())
    entries, position = [], 0
    while position < count:
        cookie = int.from_bytes(buffer.raw[position + 8 : position + 16], "little", signed=True)
        length = int.from_bytes(buffer.raw[position + 16 : position + 18], "little")
        name = buffer.raw[position + 19 : position + length].split(b"\0")[0]
        entries.append((os.fsdecode(name), cookie))
        position += length
    return entries


def rest(descriptor):
    return [name for entries in iter(lambda: batch(descriptor), []) for name, _ in entries]


@pytest.fixture
def listing(many):
    """A descriptor on the directory."""
    descriptor = os.open(many[0].path, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def without_dots(names):
    return [name for name in names if not name.startswith(".")]


def assert_each_once(found, names):
    counts = collections.Counter(without_dots(found))
    assert max(counts.values()) == 1
    assert counts.keys() == set(names)


def test_it_lists_completely_and_each_once(many):
    mounted, names, _ = many
    listed = os.listdir(mounted)
    assert len(listed) == COUNT + DOT_FILES
    assert_each_once(listed, names)
    assert output_of("find", mounted, "-type", "f", "-printf", "x") == "x" * len(listed)
    assert len(output_of("ls", "-f", mounted).split()) == len(listed) + 2
    npy = os.listdir(mounted / ".npy")
    assert_each_once(npy, [f"{name}.npy" for name in names])


def test_ls_l_has_a_line_for_each(many):
    mounted, names, _ = many
    lines = output_of("ls", "-l", mounted).splitlines()[1:]
    assert [line.split()[4] for line in lines] == ["1"] * COUNT
    assert_each_once([line.split()[-1] for line in lines], names)


def test_two_interleaved_listings_do_not_disturb_each_other(many):
    mounted, names, _ = many
    with os.scandir(mounted) as one, os.scandir(mounted) as other:
        pairs = list(itertools.zip_longest(one, itertools.islice(other, 1000, None)))
    assert_each_once([entry.name for entry, _ in pairs], names)
    late = [entry.name for _, entry in pairs if entry]
    assert len(late) == len(set(late)) == COUNT + DOT_FILES - 1000


def test_one_descriptor_can_be_read_by_two_in_turns(many, listing):
    """A duplicate shares the position, so that the two halves make one listing."""
    _, names, _ = many
    twin = os.dup(listing)
    found = []
    for descriptor in itertools.cycle([listing, twin]):
        entries = batch(descriptor)
        if not entries:
            break
        found += [name for name, _ in entries]
    os.close(twin)
    assert_each_once(found, names)


def test_every_cookie_leads_back_to_the_entry_after_it(listing):
    chance = random.Random(2)
    batches = iter(lambda: batch(listing), [])
    head = list(itertools.islice(itertools.chain.from_iterable(batches), 6000))
    for position in chance.sample(range(len(head) - 50), 60):
        os.lseek(listing, head[position][1], os.SEEK_SET)
        following = [name for name, _ in batch(listing, 512)]
        assert following == [name for name, _ in head[position + 1 :][: len(following)]]


def test_cookies_stay_valid_across_descriptors(many, listing):
    mounted, _, _ = many
    head = batch(listing, 8192)
    other = os.open(mounted.path, os.O_RDONLY | os.O_DIRECTORY)
    os.lseek(other, head[-1][1], os.SEEK_SET)
    assert rest(other) == rest(listing)
    os.close(other)


def test_a_rewind_begins_anew(many, listing):
    """As find -delete and rm -r do: read some, rewind, read again from the start."""
    _, names, _ = many
    first = batch(listing, 32_768)
    for size in (512, 4096, 32_768):
        batch(listing, size)
        os.lseek(listing, 0, os.SEEK_SET)
        again = batch(listing, 32_768)
        assert again[: len(first)] == first[: len(again)]
    os.lseek(listing, 0, os.SEEK_SET)
    assert_each_once(rest(listing), names)
    assert batch(listing) == []


def test_a_listing_among_lookups_is_complete(many, listing):
    """A lookup in the directory may change how the daemon answers the rest of the listing."""
    mounted, names, data = many
    numbers = {name: number for number, name in enumerate(names)}
    found = []
    for entries in iter(lambda: batch(listing, 32_768), []):
        found += [name for name, _ in entries]
        for name in without_dots(found[-2:]):
            assert (mounted / name).read_bytes() == data[numbers[name] : numbers[name] + 1]
            assert os.stat(mounted / name).st_size == 1
    assert_each_once(found, names)


def test_inode_numbers_of_the_listing_are_unique_and_those_of_stat(many):
    mounted, names, _ = many
    with os.scandir(mounted) as entries:
        listed = {entry.name: entry.inode() for entry in entries}
    assert len(set(listed.values())) == COUNT + DOT_FILES
    for name in random.Random(3).sample(names, 200):
        assert os.stat(mounted / name).st_ino == listed[name]


def test_the_generated_files_are_whole(many):
    mounted, names, _ = many
    index = json.loads((mounted / ".index.json").read_bytes())
    assert_each_once([entry["name"] for entry in index["tensors"]], names)
    for name in (".index.json", ".summary"):
        assert os.path.getsize(mounted / name) == len((mounted / name).read_bytes())
    with open(mounted / ".index.json", "rb", buffering=0) as file:
        whole = (mounted / ".index.json").read_bytes()
        for offset in random.Random(4).sample(range(len(whole)), 100):
            assert os.pread(file.fileno(), 1000, offset) == whole[offset:][:1000]

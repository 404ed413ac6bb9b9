"""File names are the tensor names, escaped where a file name could not hold them."""

import errno
import io
import json
import os
import tarfile

import numpy
import pytest

from checkpoints import file_name, frame, is_file_name, path_of, tensor, write
from daemon import LISTED_DOT_FILES, Mount, output_of, scratch

DOT_FILES = set(map(os.fsencode, LISTED_DOT_FILES))
LONG = "layer." * 50
HOSTILE = [
    # what must be escaped, and what only looks as if it were
    "", "/", "//", "a/b", "/etc/passwd", "../../etc/passwd", "\0", "a\0b", "%", "%%", "a%b",
    "%2F", "%2f", "a%2Fb", "%25", "%252F", "%00", "%empty", "empty", "%2Estatus", "%~", "%41", "A",
    # dots
    ".", "..", "...", ".hidden", ".status", ".npy", ".all.safetensors", ".control", ".devices",
    ".index.json", "a.b", "a..", "./a", "a/.", "a/..",
    # characters that terminals, shells and tools trip over
    "\n", "a\nb", "\t", "\r", "\x1b[31mred\x1b[0m", "\x07", "\x7f", "\x01\x02\x1f", " ", "  lead",
    "trail ", "-rf", "--help", "*", "?", "[a]", "$(id)", "`id`", '"', "'", "\\", "\\n", "a;b", "a|b",
    "a&b", "~", "#", "!", "a:b", "C:\\x", "aux", "=", ",",
    # any UTF-8 is a name
    "\u00e9", "e\u0301", "\ufffe", "\uffff", "\U0010ffff", "\U0010fffe", "\u202egnp", "\u200b",
    "\ufeff", "\u2028", "\u0085", "\ue000", "\ud7ff", "日本語", "😀", "ÅÅ", "\u2126", "\u03a9",
    # pairs that are prefixes of one another
    "x.weight", "x.weight.absmax", "x", "X",
]  # fmt: skip
LENGTHS = [
    # the last that fits and the first that does not, plain, in escapes and in wide characters
    "n" * 249, "n" * 250, "n" * 251, "n" * 255, "n" * 256, "/" * 83, "/" * 84, "%" * 83 + "n",
    "%" * 83 + "nn", "é" * 125, "é" * 126, "日" * 83, "日" * 83 + "x", "日" * 84, "😀" * 63,
    "." + "n" * 247, "." + "n" * 248,
    # equal for 250 bytes and more
    LONG + "a", LONG + "b", LONG + "/", LONG + "%2F", LONG, LONG[:-1], "n" * 10_000, "n" * 9_999,
    *("/" * 199 + "é" * length for length in range(25, 29)),
    *("x" * shift + "日" * 100 for shift in range(1, 4)),
    *("x" * shift + "/" * 100 for shift in range(1, 4)),
]  # fmt: skip


def mounted_names(names, folder):
    unique = list(dict.fromkeys(names))
    return write(folder / "names.safetensors", [tensor(name) for name in unique])


@pytest.fixture(scope="module")
def hostile():
    with scratch() as folder:
        first = mounted_names(HOSTILE + LENGTHS, folder)
        with Mount(first.path) as mounted:
            lookalikes = [
                name.decode()
                for name in os.listdir(os.fsencode(mounted.path))
                if name not in DOT_FILES
            ]
        # A second file also holds every file name of the first as a tensor name of its own.
        checkpoint = mounted_names(HOSTILE + LENGTHS + lookalikes, folder)
        with Mount(checkpoint.path) as mounted:
            yield mounted, checkpoint


def true_names(mounted):
    """{file name: tensor name} as the xattrs tell it."""
    root = os.fsencode(mounted.path)
    return {
        name: os.getxattr(os.path.join(root, name), "user.safetensors.name").decode()
        for name in os.listdir(root)
        if name not in DOT_FILES
    }


def test_every_name_has_one_file_spelled_as_designed(hostile):
    mounted, checkpoint = hostile
    names = true_names(mounted)
    assert sorted(names.values()) == sorted(t.name for t in checkpoint)
    for file, name in names.items():
        assert is_file_name(file, name), (file, name)


def test_every_file_holds_the_bytes_of_its_tensor(hostile):
    mounted, checkpoint = hostile
    data = {t.name: t.data for t in checkpoint}
    for file, name in true_names(mounted).items():
        with open(os.path.join(os.fsencode(mounted.path), file), "rb") as opened:
            assert opened.read() == data[name], name


def test_npy_adds_its_suffix_within_the_limit(hostile):
    mounted, checkpoint = hostile
    root = os.fsencode(mounted.path)
    listed = set(os.listdir(os.path.join(root, b".npy")))
    data = {t.name: t.data for t in checkpoint}
    for file, name in true_names(mounted).items():
        assert file + b".npy" in listed
        assert len(file + b".npy") <= 255
        path = os.path.join(root, b".npy", file + b".npy")
        assert os.getxattr(path, "user.safetensors.name") == name.encode()
        assert numpy.load(path).tobytes() == data[name]
    assert len(listed) == len(checkpoint.tensors)


def test_the_index_gives_the_true_names_and_their_files(hostile):
    mounted, _ = hostile
    index = json.loads((mounted / ".index.json").read_bytes())
    by_path = {os.fsencode(entry["path"]): entry["name"] for entry in index["tensors"]}
    assert by_path == true_names(mounted)


def test_find_sees_each_name_once(hostile):
    mounted, _ = hostile
    found = output_of("find", mounted, "-type", "f", "-printf", r"%P\0", binary=True)
    names = found.split(b"\0")[:-1]
    assert sorted(names) == sorted([*true_names(mounted), *DOT_FILES])
    printed = output_of("find", mounted, "-mindepth", "1", "-print0", binary=True)
    assert printed.count(b"\0") == len(names)


def test_ls_names_each_file(hostile):
    mounted, _ = hostile
    lines = output_of("ls", "-A1b", mounted, binary=True).splitlines()
    assert len(lines) == len(true_names(mounted)) + len(DOT_FILES)
    assert output_of("ls", "-lA", "--quoting-style=c", mounted, binary=True)


def test_tar_holds_the_whole_mount(hostile):
    mounted, checkpoint = hostile
    archive = output_of("tar", "--format=gnu", "-C", mounted, "-cf", "-", ".", binary=True)
    data = {t.name: t.data for t in checkpoint}
    names = true_names(mounted)
    seen = set()
    with tarfile.open(fileobj=io.BytesIO(archive), encoding="utf-8") as tar:
        for member in tar:
            file = os.fsencode(member.name).removeprefix(b"./")
            if member.isfile() and file in names:
                assert tar.extractfile(member).read() == data[names[file]]
                seen.add(file)
    assert seen == set(names)


def test_getfattr_prints_the_name(hostile):
    mounted, _ = hostile
    for name in ("a/b", "..", "日本語", LONG + "a"):
        value = output_of(
            "getfattr", "--only-values", "-n", "user.safetensors.name", path_of(mounted, name)
        )
        assert value == name


def test_a_name_longer_than_an_xattr_is_in_the_index_alone(folder, mount):
    name = "n" * 70_000
    checkpoint = write(folder / "long.safetensors", [tensor(name), tensor("short")])
    mounted = mount(checkpoint.path)
    (entry,) = (
        entry
        for entry in json.loads((mounted / ".index.json").read_bytes())["tensors"]
        if entry["name"] == name
    )
    path = mounted / entry["path"]
    assert path.read_bytes() == checkpoint[name].data
    assert os.getxattr(path, "user.safetensors.dtype") == b"U8"
    assert "user.safetensors.shape" in os.listxattr(path)
    output_of("getfattr", "-d", path)


@pytest.mark.parametrize(
    "spelling",
    ["a%2fb", "%41", "%2E%2E", "a%2Eb", "%2estatus", "%", "%2", "%00%", "%zz", "%EMPTY", "%empt",
     "%empty ", "%25%32F", "b%C3%A9", "%C3%A9", ".hidden", "x%2E", "n" * 251,
     "layer." * 33 + "%~0000000000000000", "%~0000000000000000"],
)  # fmt: skip
def test_no_second_spelling_reaches_a_tensor(hostile, spelling):
    mounted, _ = hostile
    with pytest.raises(FileNotFoundError):
        os.stat(mounted / spelling)
    with pytest.raises(FileNotFoundError):
        os.stat(mounted / f".npy/{spelling}.npy")


def test_the_empty_spelling_exists_only_for_an_empty_name(folder, mount):
    mounted = mount(write(folder / "m.safetensors", [tensor("a")]).path)
    assert not (mounted / "%empty").exists()


@pytest.mark.parametrize("length", [256, 300, 1000, 2000])
@pytest.mark.parametrize("below", ["", ".npy/"])
def test_names_over_255_bytes_are_too_long(hostile, below, length):
    mounted, _ = hostile
    with pytest.raises(OSError) as refused:
        os.stat(f"{mounted.path}/{below}{'n' * length}")
    assert refused.value.errno == errno.ENAMETOOLONG


def test_names_that_only_differ_in_normalisation_or_case_stay_apart(hostile):
    mounted, checkpoint = hostile
    for name in ("\u00e9", "e\u0301", "\u2126", "\u03a9", "x", "X"):
        with open(path_of(mounted, name), "rb") as file:
            assert file.read() == checkpoint[name].data


def test_names_written_as_json_escapes_are_the_characters(folder, mount):
    """The header may spell a character as an escape; the file name is the character."""
    header = '{"\\u0061\\u002f\\ud83d\\ude00":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}'
    (folder / "m.safetensors").write_bytes(frame(header, b"abc"))
    mounted = mount(folder / "m.safetensors")
    path = os.path.join(os.fsencode(mounted.path), file_name("a/😀"))
    with open(path, "rb") as file:
        assert file.read() == b"abc"

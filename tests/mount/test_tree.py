"""What a mount holds beside the tensors, and what stat, find and du make of it."""

import errno
import json
import os
import stat

import pytest

from checkpoints import blob, every_dtype, tensor, write
from daemon import LISTED_DOT_FILES, Mount, output_of, run, scratch

METADATA = {"format": "pt", "": "empty key", "nul": "a\0b", "wide": "日本語😀", "json": '{"a":[1]}'}
KEYS = ("name", "dtype", "shape", "nbytes", "source", "offset")
MARKER = b"a marker that stands nowhere else"


@pytest.fixture(scope="module")
def model():
    with scratch() as folder:
        tensors = [*every_dtype(), tensor("a/b", "F32", (2, 3)), blob("marked", MARKER * 3)]
        checkpoint = write(folder / "model.safetensors", tensors, METADATA, residue=5)
        with Mount(checkpoint.path) as mounted:
            yield mounted, checkpoint


def file_of(name):
    return name.replace("/", "%2F")


def everything(mounted, checkpoint):
    """Every file of the mount, the unlisted ones too."""
    for name in [*LISTED_DOT_FILES, ".all.safetensors"]:
        yield mounted / name
    for t in checkpoint:
        yield mounted / file_of(t.name)
        yield mounted / f".npy/{file_of(t.name)}.npy"


def test_the_listing_is_the_tensors_and_the_dot_files(model):
    mounted, checkpoint = model
    assert sorted(os.listdir(mounted)) == sorted(
        [*LISTED_DOT_FILES, *(file_of(t.name) for t in checkpoint)]
    )


def test_hidden_names_are_reachable(model):
    mounted, checkpoint = model
    assert stat.S_ISREG(os.stat(mounted / ".all.safetensors").st_mode)
    assert stat.S_ISDIR(os.stat(mounted / ".npy").st_mode)
    assert len(os.listdir(mounted / ".npy")) == len(checkpoint.tensors)


@pytest.mark.parametrize(
    "name", ["nothing", ".controls", ".devices/nothing", ".devices/cpu/nothing", ".nothing", ".Status",
             ".npy/nothing", ".npy/nothing.npy", ".npy/marked", ".npy/.status", "marked.npy", "marked/", "marked/x", ".STATUS", ".all", ".npy/.npy"],
)  # fmt: skip
def test_what_is_not_there_is_not_there(model, name):
    mounted, _ = model
    with pytest.raises((FileNotFoundError, NotADirectoryError)):
        os.stat(f"{mounted.path}/{name}")


def test_the_index_addresses_the_bytes_of_each_tensor(model):
    mounted, checkpoint = model
    index = json.loads((mounted / ".index.json").read_bytes())
    assert index["version"] == 1
    (source,) = index["sources"]
    expected = os.stat(checkpoint.path)
    assert os.path.isabs(source["path"]) and os.path.samefile(source["path"], checkpoint.path)
    assert source["nbytes"] == expected.st_size
    assert source["mtime_ns"] == expected.st_mtime_ns
    assert source["inode"] == expected.st_ino
    assert sorted(e["name"] for e in index["tensors"]) == sorted(t.name for t in checkpoint)
    whole = checkpoint.path.read_bytes()
    for entry in index["tensors"]:
        t = checkpoint[entry["name"]]
        assert (mounted / entry["path"]).read_bytes() == t.data
        assert (entry["dtype"], tuple(entry["shape"])) == (t.dtype, t.shape)
        assert entry["nbytes"] == len(t.data)
        assert entry["source"] == source["path"]
        assert whole[entry["offset"] :][: entry["nbytes"]] == t.data
        assert set(entry) >= {"path", *KEYS}


def test_metadata_is_what_the_header_says(model, folder, mount):
    mounted, _ = model
    assert json.loads((mounted / ".metadata.json").read_bytes()) == METADATA
    without = mount(write(folder / "m.safetensors", [tensor("a")]).path)
    assert json.loads((without / ".metadata.json").read_bytes()) == {}


def test_the_summary_names_each_tensor_with_dtype_and_bytes(model):
    mounted, checkpoint = model
    lines = (mounted / ".summary").read_text().splitlines()
    for t in checkpoint:
        if "/" not in t.name:
            (line,) = (line for line in lines if line.split()[:1] == [t.name])
            assert t.dtype in line.split(), line
    for dtype in {t.dtype for t in checkpoint}:
        assert any(dtype in line for line in lines)


def test_sizes_are_what_a_read_returns(model):
    mounted, checkpoint = model
    for path in everything(mounted, checkpoint):
        with open(path, "rb") as file:
            assert os.fstat(file.fileno()).st_size == len(file.read()), path
        if path.name != ".status":
            assert os.path.getsize(path) == len(path.read_bytes()), path


def test_blocks_cover_the_size(model):
    mounted, checkpoint = model
    for path in everything(mounted, checkpoint):
        found = os.stat(path)
        assert found.st_size <= found.st_blocks * 512 <= found.st_size + 8192, path


def test_modes_owners_and_links(model):
    mounted, checkpoint = model
    for path in everything(mounted, checkpoint):
        found = os.stat(path)
        expected = "-rw-------" if path.name == ".control" else "-r--r--r--"
        assert stat.filemode(found.st_mode) == expected, path
        assert (found.st_uid, found.st_gid, found.st_nlink) == (os.getuid(), os.getgid(), 1)
    for path in (mounted.path, mounted / ".npy"):
        assert stat.filemode(os.stat(path).st_mode) == "dr-xr-xr-x"


def test_times_are_the_sources(folder, mount):
    checkpoint = write(folder / "m.safetensors", [tensor("a")])
    moment = 1_234_567_890_123_456_789
    os.utime(checkpoint.path, ns=(moment, moment))
    mounted = mount(checkpoint.path)
    for name in ("a", ".npy/a.npy", ".all.safetensors", ".index.json", ".metadata.json"):
        assert os.stat(mounted / name).st_mtime_ns == moment, name


def test_statfs_tells_the_total_and_the_longest_name(model):
    mounted, checkpoint = model
    found = os.statvfs(mounted)
    assert found.f_namemax == 255
    assert found.f_blocks * found.f_frsize >= sum(len(t.data) for t in checkpoint)
    assert found.f_bavail == found.f_bfree == 0
    output_of("df", mounted)


def test_xattrs_describe_the_tensor_and_its_npy(model):
    mounted, checkpoint = model
    for t in checkpoint:
        expected = {
            "name": t.name,
            "dtype": t.dtype,
            "shape": json.dumps(t.shape, separators=(",", ":")),
            "nbytes": str(len(t.data)),
            "offset": str(checkpoint.offsets[t.name]),
        }
        for path in (mounted / file_of(t.name), mounted / f".npy/{file_of(t.name)}.npy"):
            found = {key: os.getxattr(path, f"user.safetensors.{key}").decode() for key in KEYS}
            assert os.path.samefile(found.pop("source"), checkpoint.path)
            assert found == expected
            assert sorted(os.listxattr(path)) == sorted(f"user.safetensors.{key}" for key in KEYS)


def test_other_xattrs_are_unsupported_or_absent(model):
    mounted, _ = model
    answers = {
        "user.other": errno.ENODATA,
        "user.safetensors": errno.ENODATA,
        "user.safetensors.": errno.ENODATA,
        "user.safetensors.Name": errno.ENODATA,
        "security.selinux": errno.EOPNOTSUPP,
        "security.capability": errno.EOPNOTSUPP,
        "system.posix_acl_access": errno.EOPNOTSUPP,
    }
    if os.geteuid() == 0:
        answers["trusted.overlay.opaque"] = errno.EOPNOTSUPP
    for name, answer in answers.items():
        with pytest.raises(OSError) as refused:
            os.getxattr(mounted / "marked", name)
        assert refused.value.errno == answer, name
    for path in (mounted.path, mounted / ".npy", mounted / ".status", mounted / ".summary"):
        assert os.listxattr(path) == []
        with pytest.raises(OSError) as refused:
            os.getxattr(path, "user.safetensors.name")
        assert refused.value.errno == errno.ENODATA


def test_a_short_xattr_buffer_is_erange_and_getfattr_prints_all(model):
    mounted, _ = model
    printed = output_of("getfattr", "-d", "--absolute-names", mounted / "F32.matrix")
    assert 'user.safetensors.shape="[3,8]"' in printed
    assert 'user.safetensors.dtype="F32"' in printed


def test_inode_numbers_are_stable_unique_and_equal_in_the_listing(model):
    mounted, checkpoint = model
    first = {path: os.stat(path).st_ino for path in everything(mounted, checkpoint)}
    assert len(set(first.values())) == len(first)
    assert {os.stat(mounted.path).st_ino, os.stat(mounted / ".npy").st_ino}.isdisjoint(
        first.values()
    )
    for _ in range(3):
        assert {path: os.stat(path).st_ino for path in first} == first
    for folder in (mounted.path, mounted / ".npy"):
        with os.scandir(folder) as entries:
            for entry in entries:
                assert entry.inode() == first[folder / entry.name], entry.name
                assert entry.is_file(follow_symlinks=False)


def test_dot_and_dot_dot_lead_where_they_should(model):
    mounted, _ = model
    assert os.path.samefile(mounted / ".npy/..", mounted.path)
    assert os.path.samefile(mounted / ".npy/.", mounted / ".npy")


def test_tools_see_the_model_once(model, folder):
    mounted, checkpoint = model
    files = len(checkpoint.tensors) + len(LISTED_DOT_FILES)
    assert output_of("find", mounted, "-type", "f", "-printf", "x") == "x" * files
    assert output_of("find", mounted, "-type", "d", "-printf", "x") == "x"
    assert len(output_of("ls", "-lA", mounted).splitlines()) == files + 1
    assert output_of("grep", "-rlaF", MARKER.decode(), mounted) == f"{mounted / 'marked'}\n"
    total = sum(os.path.getsize(mounted / name) for name in os.listdir(mounted))
    du = int(output_of("du", "-s", "--apparent-size", "-B1", mounted).split()[0])
    assert total <= du <= total + 65_536
    output_of("cp", "-r", mounted.path, folder / "copy")
    assert sorted(os.listdir(folder / "copy")) == sorted(os.listdir(mounted))
    for t in checkpoint:
        assert (folder / "copy" / file_of(t.name)).read_bytes() == t.data


def test_ls_la_is_silent_about_errors(model):
    mounted, _ = model
    for command in (["ls", "-la"], ["ls", "-laR"], ["du", "-a"], ["find"], ["stat"]):
        assert run(*command, mounted).stderr == ""


def test_read_of_a_directory_and_readdir_of_a_file_are_refused(model):
    mounted, _ = model
    with pytest.raises(IsADirectoryError):
        (mounted / ".npy").read_bytes()
    with pytest.raises(NotADirectoryError):
        os.listdir(mounted / "marked")
    with pytest.raises(OSError):
        os.readlink(mounted / "marked")


def test_generated_files_answer_reads_at_any_offset(model):
    mounted, checkpoint = model
    for name in LISTED_DOT_FILES:
        with open(mounted / name, "rb", buffering=0) as file:
            whole = file.read()
            for offset in range(0, len(whole) + 100, max(1, len(whole) // 37)):
                assert os.pread(file.fileno(), 33, offset) == whole[offset:][:33], name
    direct = os.open(mounted / ".index.json", os.O_RDONLY | os.O_DIRECT)
    os.close(direct)

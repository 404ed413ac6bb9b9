"""A mount is read-only, and what is no safetensors file is called what it is."""

import gzip
import json
import os
import pickle
import re
import zipfile
from pathlib import Path

import pytest

import daemon
from checkpoints import encode, frame, tensor, write
from daemon import IS_ROOT, SYSTEM_PYTHON, run, safetensorfs

ATTEMPT = Path(__file__).with_name("attempt.py")
READ_ONLY = {"EROFS", "EPERM"}
# What the kernel itself answers, before it asks the daemon: links and renames leave the device,
# a mount's root is busy, an unnamed file needs a filesystem that knows them.
ACROSS = {"EXDEV"}
BY_THE_KERNEL = {
    "rename out": ACROSS,
    "link out": ACROSS,
    "rmdir of the folder": {"EBUSY"},
    "create unnamed": {"ENOTSUP", "EISDIR"},  # ENOTSUP is Python's word for EOPNOTSUPP
}
PLACES = [
    ("", "weight"), ("", ".status"), ("", ".summary"), ("", ".index.json"),
    ("", ".metadata.json"), ("", ".all.safetensors"), (".npy", "weight.npy"),
]  # fmt: skip


def attempts_on(mounted, below, file, folder, run=run):
    place = mounted / below if below else mounted.path
    result = run(SYSTEM_PYTHON, ATTEMPT, place, place / file, folder)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def not_among(outcomes, allowed):
    return {
        name: outcome
        for name, outcome in outcomes.items()
        if outcome not in allowed | BY_THE_KERNEL.get(name, set())
    }


@pytest.fixture
def model(folder):
    return write(folder / "m.safetensors", [tensor("weight", "F32", (100,)), tensor("other")])


def assert_untouched(mounted, checkpoint):
    for t in checkpoint:
        assert (mounted / t.name).read_bytes() == t.data
    assert not (mounted / "new").exists()


@pytest.mark.skipif(not IS_ROOT, reason="the kernel answers others before the daemon is asked")
@pytest.mark.parametrize("below, file", PLACES)
def test_root_can_change_nothing(model, mount, folder, below, file):
    mounted = mount(model.path)
    outcomes = attempts_on(mounted, below, file, folder)
    assert not_among(outcomes, READ_ONLY) == {}
    assert_untouched(mounted, model)


@pytest.mark.parametrize("below, file", PLACES)
def test_another_user_can_change_nothing(model, mount, folder, other_user, below, file):
    mounted = mount(model.path, options="allow_other")
    outcomes = attempts_on(mounted, below, file, folder, other_user)
    assert not_among(outcomes, READ_ONLY | {"EACCES"}) == {}
    assert_untouched(mounted, model)


def test_the_owner_who_is_not_root_can_change_nothing(model, mount, folder, other_user):
    mounted = mount(model.path, other_user=True)
    for below, file in PLACES:
        outcomes = attempts_on(mounted, below, file, folder, other_user)
        assert not_among(outcomes, READ_ONLY | {"EACCES"}) == {}


def test_a_mirrored_folder_can_not_be_changed(mount, folder):
    (folder / "tree").mkdir()
    write(folder / "tree/m.safetensors", [tensor("weight")])
    (folder / "tree/config.json").write_text("{}")
    mounted = mount(folder / "tree")
    allowed = READ_ONLY if IS_ROOT else READ_ONLY | {"EACCES"}
    for below, file in (("", "config.json"), ("m.tensors", "weight")):
        assert not_among(attempts_on(mounted, below, file, folder), allowed) == {}
    assert (folder / "tree/config.json").read_text() == "{}"


def test_the_ro_option_makes_the_kernel_refuse(model, mount, folder):
    mounted = mount(model.path, options="ro")
    outcomes = attempts_on(mounted, "", "weight", folder)
    assert not_among(outcomes, {"EROFS"} if IS_ROOT else READ_ONLY | {"EACCES"}) == {}


def test_a_mount_without_ro_is_not_read_only_to_the_kernel(model, mount):
    mounted = mount(model.path)
    assert not os.statvfs(mounted).f_flag & os.ST_RDONLY


def test_rm_rf_removes_nothing_and_ends(model, mount):
    mounted = mount(model.path)
    assert run("rm", "-rf", *(mounted / name for name in os.listdir(mounted))).returncode != 0
    assert_untouched(mounted, model)


GOOD, _ = encode([tensor("weight", "F32", (100,)), tensor("other")])
LFS = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    b"size 133466304\n"
)


def zip_bytes(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"a": 1}))
    return path.read_bytes()


WRONG = {
    "a Git LFS pointer": (lambda _: LFS, "LFS"),
    "an HTML page": (lambda _: b"<!DOCTYPE html>\n<html><head></head></html>", "HTML"),
    "an HTML page in lower case": (lambda _: b"\n <html>" + b" " * 900, "HTML"),
    "a ZIP archive": (lambda folder: zip_bytes(folder / "zip"), "ZIP"),
    "a pickle": (lambda _: pickle.dumps({"a": list(range(999))}, protocol=2), "pickle"),
    "a newer pickle": (lambda _: pickle.dumps({"a": list(range(999))}, protocol=4), "pickle"),
    "GGUF": (lambda _: b"GGUF\3\0\0\0" + bytes(range(200)), "GGUF"),
    "gzip": (lambda _: gzip.compress(GOOD), "gzip"),
    "zeros": (lambda _: bytes(70_000), "zero"),
    "eight zeros": (lambda _: bytes(8), "zero"),
    "a file cut in its data": (lambda _: GOOD[:-123], r"truncated.*\b123\b"),
    "a file cut by one byte": (lambda _: GOOD[:-1], r"truncated.*\b1 bytes?\b"),
    "a file cut in its header": (lambda _: GOOD[:60], r"truncated"),
    "a file that goes on": (lambda _: GOOD + b"x" * 45, r"\b45\b"),
    "an empty file": (lambda _: b"", "HeaderTooSmall"),
    "seven bytes": (lambda _: b"1234567", "HeaderTooSmall"),
    "text": (lambda _: b"just some words, nothing else\n", "HeaderTooLarge"),
    "no JSON": (lambda _: frame(b"not json"), "InvalidHeaderDeserialization"),
    "no UTF-8": (lambda _: frame(b'{"\xff":1}'), "InvalidHeader"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_source_is_called_what_it_is(folder, kind):
    make, says = WRONG[kind]
    path = folder / "model.safetensors"
    path.write_bytes(make(folder))
    (folder / "mnt").mkdir()
    result = safetensorfs(path, folder / "mnt")
    assert result.returncode == 31
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert str(path) in line
    assert re.search(says, line, re.IGNORECASE), line
    assert not os.path.ismount(folder / "mnt")


def test_a_message_names_tensor_rule_and_values(folder):
    header = {"a.w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 12]}}
    path = folder / "model.safetensors"
    path.write_bytes(frame(json.dumps(header), bytes(12)))
    (folder / "mnt").mkdir()
    result = safetensorfs(path, folder / "mnt")
    assert result.returncode == 31
    (line,) = result.stderr.splitlines()
    for part in (str(path), '"a.w"', "[0,12)", "12 bytes", "F32 [2,2]", "16", "TensorInvalidInfo"):
        assert part in line, line


def test_a_message_stays_one_line_whatever_the_name(folder):
    header = {"a\n\x1b[31m": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 12]}}
    path = folder / "model.safetensors"
    path.write_bytes(frame(json.dumps(header), bytes(12)))
    (folder / "mnt").mkdir()
    result = safetensorfs(path, folder / "mnt")
    assert result.returncode == 31
    assert len(result.stderr.splitlines()) == 1
    assert "\x1b" not in result.stderr


def test_a_source_that_is_not_there_or_cannot_be_read_is_30(folder, other_user):
    (folder / "mnt").mkdir()
    os.chown(folder / "mnt", daemon.OTHER_UID, daemon.OTHER_GID)
    result = safetensorfs(folder / "absent.safetensors", folder / "mnt")
    assert result.returncode == 30
    assert "absent.safetensors" in result.stderr and "No such file" in result.stderr
    private = write(folder / "private.safetensors", [tensor("a")])
    private.path.chmod(0)
    result = other_user(daemon.BINARY, private.path, folder / "mnt")
    assert result.returncode == 30
    assert "private.safetensors" in result.stderr and "Permission denied" in result.stderr


@pytest.mark.parametrize("name", ["/dev/null", "/dev/zero"])
def test_a_device_is_no_source(folder, name):
    (folder / "mnt").mkdir()
    assert safetensorfs(name, folder / "mnt").returncode in (30, 31)


@pytest.mark.parametrize(
    "words",
    [[], ["one"], ["one", "two", "three"], ["-z", "a", "b"], ["--nonsense"], ["--check"], ["-o"],
     ["--check", "a", "b"], ["-o", "nonsense", "a", "b"], ["-o", "uid=x", "a", "b"],
     ["-o", "gid=", "a", "b"], ["-o", "umask=9", "a", "b"], ["-o", "max_threads=0", "a", "b"],
     ["-o", "max_threads=many", "a", "b"], ["-o", "uid", "a", "b"], ["-o", "uid=-1", "a", "b"]],
    ids=" ".join,
)  # fmt: skip
def test_a_usage_error_is_1_and_prints_the_usage(words):
    result = safetensorfs(*words)
    assert result.returncode == 1
    assert result.stdout == ""
    assert any(line.startswith("usage:") for line in result.stderr.splitlines())


def test_a_mountpoint_that_is_none_is_2(model, folder):
    (folder / "file").write_text("")
    for place in (folder / "absent", folder / "file", folder / "file/below"):
        result = safetensorfs(model.path, place)
        assert result.returncode == 2, result
        assert str(place) in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_a_user_may_not_mount_on_what_is_not_theirs(model, folder, other_user):
    (folder / "mnt").mkdir()
    result = other_user(daemon.BINARY, model.path, folder / "mnt")
    assert result.returncode == 2
    assert str(folder / "mnt") in result.stderr

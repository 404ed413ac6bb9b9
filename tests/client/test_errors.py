"""What is wrong with a path or an argument is said in a sentence that tells what to do."""

import errno
import os
import pickle
import signal
import sys

import pytest

from checkpoints import tensor, write
from daemon import AS_OTHER_USER, IS_ROOT, SYSTEM_PYTHON, run
from expected import environment
from safetensorfs import CommandError, Mount, MountError, load_file


@pytest.fixture(params=[load_file, Mount], ids=["load_file", "Mount"])
def opening(request):
    def refused(path):
        with pytest.raises(MountError) as caught:
            request.param(path)
        assert isinstance(caught.value, OSError)
        return caught.value

    return refused


def test_a_folder_that_does_not_exist(folder, opening):
    error = opening(folder / "no")
    assert error.errno == errno.ENOENT
    assert str(error) == f"{folder}/no: no such folder"


def test_a_folder_on_which_nothing_is_mounted(folder, opening):
    assert str(opening(folder)) == (
        f"{folder}: has no .index.json, so it is not a safetensorfs mount; is it mounted?"
    )


def test_a_file_instead_of_a_mount(folder, opening):
    path = write(folder / "m.safetensors", [tensor("a")]).path
    error = opening(path)
    assert error.errno == errno.ENOTDIR
    assert str(error) == (
        f"{path}: is a file, not a mounted folder; mount it first: safetensorfs {path} MOUNTPOINT"
    )


def test_a_mounted_folder_names_its_checkpoints(folder, mounting, opening):
    for name in "ab":
        write(folder / f"{name}.safetensors", [tensor(name)])
    mounted = mounting(folder)
    assert str(opening(mounted)) == (
        f"{mounted.path}: has no .index.json: it is a mounted folder of checkpoints; name one of "
        f"{mounted.path}/a.tensors, {mounted.path}/b.tensors"
    )


def test_a_mount_whose_daemon_was_killed(folder, mounting, opening):
    mounted = mounting(write(folder / "m.safetensors", [tensor("a")]).path)
    os.kill(mounted.pid, signal.SIGKILL)
    mounted.wait_for_end()
    error = opening(mounted)
    assert error.errno == errno.ENOTCONN
    assert str(error) == (
        f"{mounted.path}: the daemon has ended; `fusermount3 -uz {mounted.path}` clears the "
        "dead mount"
    )


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
def test_a_mount_of_another_user(folder, mounting):
    mounted = mounting(write(folder / "m.safetensors", [tensor("a")]).path)
    script = (
        "import sys, types\n"
        # Another user's Python may have no NumPy; what is asked here needs none.
        "sys.modules['numpy'] = types.ModuleType('numpy')\n"
        "from safetensorfs.index import read_index\n"
        f"read_index({str(mounted.path)!r})\n"
    )
    result = run(*AS_OTHER_USER, SYSTEM_PYTHON, "-B", "-c", script, env=environment())
    assert result.stderr.splitlines()[-1] == (
        f"safetensorfs.errors.MountError: {mounted.path}: permission denied; a mount is for the "
        "user who made it, unless it was made with -o allow_other"
    )


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("{", "its .index.json is not JSON (Expecting property name enclosed in double quotes: "
              "line 1 column 2 (char 1)); is this a mount?"),
        ("[]", "its .index.json is not the one of a safetensorfs mount"),
        ('{"version": 1}', "its .index.json is not the one of a safetensorfs mount"),
        ('{"version": 2, "sources": [], "tensors": []}',
         "its .index.json has version 2, this client reads version 1: install the client that "
         "came with the daemon"),
    ],
)  # fmt: skip
def test_an_index_that_is_not_ours(folder, text, sentence):
    (folder / ".index.json").write_text(text)
    with pytest.raises(MountError) as caught:
        load_file(folder)
    assert str(caught.value) == f"{folder}: {sentence}"


@pytest.mark.parametrize("device", ["cuda", "cuda:", "cuda:x", "CPU", "GPU-0", ""])
def test_devices_that_this_version_lacks(folder, mounting, device):
    mounted = mounting(write(folder / "m.safetensors", [tensor("a")]).path)
    sentence = (
        f"device '{device}' is not supported by this version, which attaches to cpu and cuda:N "
        "(cuda:0, cuda:1, ...) only"
    )
    for attempt in lambda: load_file(mounted, device), lambda: Mount(mounted).attach(device, "a"):
        with pytest.raises(ValueError) as caught:
            attempt()
        assert str(caught.value) == sentence


def test_frameworks_that_do_not_exist(folder, mounting):
    mounted = mounting(write(folder / "m.safetensors", [tensor("a")]).path)
    with pytest.raises(ValueError) as caught:
        load_file(mounted, framework="tf")
    assert str(caught.value) == 'framework is "np" or "pt", not \'tf\''


def test_pytorch_where_there_is_none(folder, mounting, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    mounted = mounting(write(folder / "m.safetensors", [tensor("a")]).path)
    with pytest.raises(ImportError, match='framework="pt" needs PyTorch: '):
        load_file(mounted, framework="pt")


def test_exceptions_survive_pickling():
    for error in MountError(2, "words", "/m"), CommandError(12, "words", "/m/.control", "report"):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), copy.errno) == (type(error), str(error), error.errno)
    assert copy.report == "report"

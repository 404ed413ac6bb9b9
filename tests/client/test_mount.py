"""Mount tells what there is, and hands commands to the daemon."""

import errno
import json
import os
import signal

import pytest

from checkpoints import blob, path_of, tensor, write
from daemon import AS_OTHER_USER, IS_ROOT, SYSTEM_PYTHON, run
from expected import environment, python, signal_during_load, write_holes
from safetensorfs import CommandError, Mount


def test_the_tensors_of_a_mount_are_those_of_its_index(folder, mounting):
    checkpoint = write(folder / "m.safetensors", [tensor("a/b", "F32", (2, 3)), tensor("c")])
    mounted = mounting(checkpoint.path)
    tensors = Mount(mounted).tensors()
    index = json.loads((mounted / ".index.json").read_text())
    assert [list(t) for t in tensors.values()] == [
        [(*value,) if key == "shape" else value for key, value in entry.items()]
        for entry in index["tensors"]
    ]
    assert tensors["a/b"].path == "a%2Fb" and tensors["a/b"].shape == (2, 3)


def test_a_closed_mount_says_so(folder, mounting):
    mounted = mounting(write(folder / "m.safetensors", [tensor("a")]).path)
    with Mount(mounted) as opened:
        assert opened.status()["version"] == 1
    for attempt in opened.status, opened.tensors, opened.devices, lambda: opened.verify("cpu"):
        with pytest.raises(ValueError, match="is closed"):
            attempt()
    assert opened.close() == 0


def loaded(mounted):
    """File names of what the cpu device holds."""
    return set(os.listdir(os.fsencode(mounted / ".devices/cpu/data")))


def of_device(mount, key, device="cpu"):
    return next(d[key] for d in mount.status()["devices"] if d["name"] == device)


@pytest.fixture
def layers(folder, mounting):
    names = [f"h.{i}.{part}" for i in range(12) for part in ("weight", "bias")] + ["wte"]
    checkpoint = write(folder / "m.safetensors", [tensor(name, "F32", (4,)) for name in names])
    return mounting(checkpoint.path)


def refused(command, *arguments, **options):
    with pytest.raises(CommandError) as caught:
        command(*arguments, **options)
    return caught.value


def test_devices_tell_about_themselves(layers):
    info = Mount(layers).devices()["cpu"]
    assert info["name"] == "cpu" and info["loaded_tensors"] == 0


def test_load_and_unload_by_globs(layers):
    mount = Mount(layers)
    report = mount.load("cpu", "h.[0-3].*")
    assert "load" in report and "cpu" in report
    assert loaded(layers) == {f"h.{i}.{p}".encode() for i in range(4) for p in ("weight", "bias")}
    assert of_device(mount, "loaded_tensors") == 8
    assert of_device(mount, "loaded_nbytes") == 8 * 16
    mount.load("cpu", ["h.0.*", "wte"])  # what is there already is skipped
    assert of_device(mount, "loaded_tensors") == 9
    mount.unload("cpu", "*.weight")
    assert loaded(layers) == {*(f"h.{i}.bias".encode() for i in range(4)), b"wte"}
    mount.unload("cpu", "*")
    assert loaded(layers) == set()


def test_verify_with_and_without_patterns(layers):
    mount = Mount(layers)
    mount.load("cpu", "h.1.*")
    assert "verify" in mount.verify("cpu")
    assert "verify" in mount.verify("cpu", "h.1.w*")
    assert "verify" in mount.verify("cpu", names="h.1.bias")


def test_names_are_literal(folder, mounting):
    names = [
        "", ".", "a*b", "axb", "[ab]", "a", "b", "?", "it's", '"', "\\", "two words", "new\nline",
        "\t", "#", "$HOME", "a/b", "a\0b", "%00", "名前", "-", "n" * 600, "n" * 599 + "/",
    ]  # fmt: skip
    mounted = mounting(write(folder / "m.safetensors", [tensor(name) for name in names]).path)
    mount = Mount(mounted)
    for name in names:
        mount.load("cpu", names=[name])
        assert loaded(mounted) == {os.path.basename(path_of(mounted, name))}, name
        mount.unload("cpu", names=[name])
    mount.load("cpu", names=names)
    assert of_device(mount, "loaded_tensors") == len(names)


def test_only_globs_are_special_in_patterns(folder, mounting):
    names = ["a b", "a$b", "a*b", "axb", "{a,b}"]
    mounted = mounting(write(folder / "m.safetensors", [tensor(name) for name in names]).path)
    mount = Mount(mounted)
    for pattern, matched in (
        ("a b", {b"a b"}), ("a$?", {b"a$b"}), ("a[*]b", {b"a*b"}), ("{a,b}", {b"{a,b}"}),
        ("a?b", {b"a b", b"a$b", b"a*b", b"axb"}),
    ):  # fmt: skip
        mount.load("cpu", pattern)
        assert loaded(mounted) == matched, pattern
        mount.unload("cpu", "*")


def test_a_pattern_that_matches_nothing(layers):
    mount = Mount(layers)
    error = refused(mount.load, "cpu", ["h.*", "nothing.*"])
    assert error.errno == errno.ENOENT
    assert "nothing.*" in error.strerror and "\n" not in error.strerror
    assert str(error) == f"{layers.path}/.control: {error.strerror}"
    assert error.report.rstrip("\n").endswith(error.strerror)
    assert loaded(layers) == set()


def test_a_device_that_does_not_exist(layers):
    error = refused(Mount(layers).load, "cuda:99", "*")
    assert error.errno == errno.ENODEV
    assert "cuda:99" in error.strerror


def test_nothing_to_load(layers):
    for command in Mount(layers).load, Mount(layers).unload:
        with pytest.raises(ValueError, match="give patterns or names"):
            command("cpu")


def test_one_command_longer_than_a_write(folder, mounting):
    names = [f"{i:05}.{'x' * 100}" for i in range(25_000)]
    mounted = mounting(write(folder / "m.safetensors", [blob(n, b"1234") for n in names]).path)
    mount = Mount(mounted)
    mount.load("cpu", names=names)
    assert of_device(mount, "loaded_tensors") == len(names)


@pytest.fixture
def large(folder, mounting):
    size = 512 << 20
    return mounting(write_holes(folder / "m.safetensors", size)), size


def test_progress_is_told_while_the_load_runs(large):
    mounted, size = large
    told = []
    Mount(mounted).load("cpu", "*", progress=lambda *figures: told.append(figures))
    ((_, total),) = told[-1:]
    assert size <= total <= size + 8192  # whole pages
    assert told[-1] == (total, total) and {figures[1] for figures in told} == {total}
    assert told == sorted(told)


def test_an_exception_of_progress_is_raised_after_the_load(large):
    mounted, _ = large

    def fail(done, total):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Mount(mounted).load("cpu", "*", progress=fail)
    assert loaded(mounted) == {b"w"}


def test_ctrl_c_cancels(large):
    mounted, _ = large
    script = (
        "import sys; from safetensorfs import Mount\n"
        "try: Mount(sys.argv[1]).load('cpu', '*', progress=print)\n"
        "except KeyboardInterrupt: print('interrupted')\n"
    )
    command = python("-c", script, mounted.path)
    status, output, complaint = signal_during_load(mounted, command, signal.SIGINT)
    assert (status, output.splitlines()[-1], complaint) == (0, "interrupted", "")


def test_a_signal_whose_handler_does_not_raise_cancels_once(large):
    mounted, _ = large
    script = (
        "import signal, sys; from safetensorfs import CommandError, Mount\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('handled'))\n"
        "try: Mount(sys.argv[1]).load('cpu', '*')\n"
        "except CommandError as error: print(error.errno, error.strerror)\n"
    )
    command = python("-c", script, mounted.path)
    status, output, complaint = signal_during_load(mounted, command, signal.SIGTERM)
    assert (status, complaint) == (0, "")
    handled, told = output.splitlines()
    assert handled == "handled" and told.startswith(f"{errno.EINTR} ")


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
def test_commands_of_another_user_are_refused_with_a_reason(folder, mounting):
    checkpoint = write(folder / "m.safetensors", [tensor("a")])
    mounted = mounting(checkpoint.path, options="allow_other")
    script = (
        "import sys, types\n"
        # Another user's Python may have no NumPy; what is asked here needs none.
        "sys.modules['numpy'] = types.ModuleType('numpy')\n"
        "from safetensorfs import Mount\n"
        f"Mount({str(mounted.path)!r}).load('cpu', '*')\n"
    )
    result = run(*AS_OTHER_USER, SYSTEM_PYTHON, "-B", "-c", script, env=environment())
    assert result.stderr.splitlines()[-1] == (
        f"safetensorfs.errors.CommandError: {mounted.path}/.control: uid 0 commands this mount, "
        "and the group given with -o gid=; not uid 65534"
    )

"""The daemon as a process: exit statuses, signals, readiness, options, users, odd paths."""

import errno
import os
import re
import select
import signal
import stat

import pytest

import daemon
from checkpoints import tensor, write
from daemon import (
    BINARY, DEADLINE, OTHER_GID, OTHER_UID, Mount, foreground, mounts_at, output_of,
    run, safetensorfs, unmounting,
)  # fmt: skip

TENSOR = tensor("weight", "F32", (100,))
MEANINGLESS = (
    "rw", "defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group", "nofail",
    "_netdev", "dev", "nodev", "suid", "nosuid", "exec", "noexec", "async", "sync", "atime",
    "noatime", "relatime", "norelatime", "strictatime", "nostrictatime", "diratime", "nodiratime",
    "lazytime", "nolazytime", "comment=some words", "x-systemd.automount", "x-foo", "x-foo=bar",
)  # fmt: skip


@pytest.fixture
def model(folder):
    return write(folder / "model.safetensors", [TENSOR]).path


@pytest.fixture
def mountpoint():
    path = daemon.make_mountpoint()
    yield path
    while mounts_at(path) and run(*unmounting(path, lazily=True)).returncode == 0:
        pass
    os.rmdir(path)


def assert_serves(place):
    with open(os.path.join(place, TENSOR.name), "rb") as file:
        assert file.read() == TENSOR.data


def test_the_background_returns_once_the_mount_answers(model, mount):
    mounted = mount(model)
    assert_serves(mounted)
    assert (mounted.result.stdout, mounted.result.stderr) == ("", "")


@pytest.mark.parametrize("options", ["", "-o auto_unmount"])
def test_a_command_substitution_returns_at_once(model, mountpoint, options):
    script = f'x=$({BINARY} {options} {model} {mountpoint} 2>&1) && echo "[$x]"'
    assert output_of("sh", "-c", script) == "[]\n"
    assert_serves(mountpoint)
    output_of(*unmounting(mountpoint))


def test_auto_unmount_clears_the_mount_of_a_killed_daemon(model, folder, mountpoint):
    with foreground(folder, "-f", "-o", "auto_unmount", model, mountpoint) as process:
        assert mounts_at(mountpoint)
        watched = os.open("/proc/self/mountinfo", os.O_RDONLY)
        process.kill()
        poll = select.poll()
        # The kernel marks a change of the mount table as an exceptional condition.
        poll.register(watched, select.POLLPRI)
        while mounts_at(mountpoint):
            assert poll.poll(DEADLINE * 1000), "the dead mount stayed"
        os.close(watched)


def test_umount_ends_the_process(model, mount):
    mounted = mount(model)
    mounted.unmount()
    assert mounts_at(mounted.path) == []


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_unmounts(model, mount, name):
    mounted = mount(model)
    os.kill(mounted.pid, signal.Signals[name])
    mounted.wait_for_end()
    assert mounts_at(mounted.path) == []


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_in_the_foreground_unmounts_and_exits_with_0(model, folder, mountpoint, name):
    with foreground(folder, "-f", model, mountpoint) as process:
        assert_serves(mountpoint)
        process.send_signal(signal.Signals[name])
        assert process.wait(DEADLINE) == 0
        assert mounts_at(mountpoint) == []


def test_umount_in_the_foreground_exits_with_0(model, folder, mountpoint):
    with foreground(folder, "-f", model, mountpoint) as process:
        output_of(*unmounting(mountpoint))
        assert process.wait(DEADLINE) == 0


def test_readiness_is_told_to_an_abstract_socket_too(model, folder, mountpoint):
    address = f"@safetensorfs-test-{os.getpid()}"
    with foreground(folder, "-f", model, mountpoint, address=address) as process:
        assert_serves(mountpoint)
        process.terminate()
        assert process.wait(DEADLINE) == 0


def test_d_stays_in_the_foreground_and_shows_the_requests(model, folder, mountpoint):
    with foreground(folder, "-d", model, mountpoint) as process:
        assert_serves(mountpoint)
        process.terminate()
        _, errors = process.communicate(timeout=DEADLINE)
        assert process.returncode == 0
        assert "LOOKUP" in errors


def test_a_busy_mount_still_ends_on_a_signal(model, mount):
    mounted = mount(model)
    with open(mounted / TENSOR.name, "rb"):
        os.kill(mounted.pid, signal.SIGTERM)
        mounted.wait_for_end()


def test_relative_paths_work_in_the_background(model, folder):
    name = os.path.basename(folder) + "-mnt"
    (folder / name).mkdir()
    with Mount("model.safetensors", mountpoint=name, cwd=folder) as mounted:
        assert_serves(mounted)
        assert (mounted / ".all.safetensors").read_bytes() == model.read_bytes()


def test_a_relative_folder_is_a_source(model, folder):
    name = os.path.basename(folder) + "-mnt"
    (folder / "tree/below").mkdir(parents=True)
    (folder / name).mkdir()
    model.rename(folder / "tree/model.safetensors")
    with Mount("../../tree", mountpoint=f"../../{name}", cwd=folder / "tree/below") as mounted:
        assert_serves(mounted / "model.tensors")


def test_options_may_follow_the_operands(model, mountpoint):
    output_of(BINARY, model, mountpoint, "-o", "rw,nofail", "-o", "max_threads=3")
    assert_serves(mountpoint)


@pytest.mark.parametrize("as_other", [False, True], ids=["root", "other user"])
def test_commas_spaces_and_backslashes_in_paths(folder, mount, other_user, as_other):
    odd = folder / "a,b c\\d \\040,e\\,f=é"
    odd.mkdir()
    path = write(odd / "m o,d\\el.safetensors", [TENSOR]).path
    (odd / "mnt, \\x").mkdir()
    os.chown(odd / "mnt, \\x", *((OTHER_UID, OTHER_GID) if as_other else (-1, -1)))
    mounted = mount(path, mountpoint=os.fspath(odd / "mnt, \\x"), other_user=as_other)
    assert mounts_at(mounted.path) == [("fuse.safetensorfs", os.fspath(path))]
    read = other_user if as_other else run
    assert read("cat", mounted / TENSOR.name, binary=True).stdout == TENSOR.data
    mounted.unmount()


def test_findmnt_shows_type_and_source(model, mount):
    mounted = mount(model)
    shown = output_of("findmnt", "-no", "FSTYPE,SOURCE", "-M", mounted)
    assert shown.split() == ["fuse.safetensorfs", os.fspath(model)]


def test_fsname_replaces_the_source_in_the_mount_table(model, mount):
    assert mounts_at(mount(model, options="fsname=llama").path) == [("fuse.safetensorfs", "llama")]


def test_an_ordinary_user_mounts_reads_and_unmounts(model, mount, other_user):
    mounted = mount(model, other_user=True)
    assert mounts_at(mounted.path) == [("fuse.safetensorfs", os.fspath(model))]
    assert other_user("cat", mounted / TENSOR.name, binary=True).stdout == TENSOR.data
    shown = other_user("stat", "-c", "%u %g %a", mounted / TENSOR.name)
    assert shown.stdout == f"{OTHER_UID} {OTHER_GID} 444\n"
    assert other_user("ls", "-la", mounted).returncode == 0
    with pytest.raises(PermissionError):
        os.listdir(mounted)
    mounted.unmount()


def test_an_ordinary_user_may_allow_others_and_root(model, mount, other_user):
    assert_serves(mount(model, other_user=True, options="allow_other"))
    assert_serves(mount(model, other_user=True, options="allow_root"))


def test_an_ordinary_users_daemon_ends_on_sigterm(model, mount, other_user):
    mounted = mount(model, other_user=True)
    os.kill(mounted.pid, signal.SIGTERM)
    mounted.wait_for_end()
    assert mounts_at(mounted.path) == []


def test_an_ordinary_user_has_auto_unmount_too(model, mountpoint, other_user):
    os.chown(mountpoint, OTHER_UID, OTHER_GID)
    script = f'x=$({BINARY} -o auto_unmount {model} {mountpoint} 2>&1) && echo "[$x]"'
    assert other_user("sh", "-c", script).stdout == "[]\n"
    assert other_user("fusermount3", "-u", mountpoint).returncode == 0


def test_others_are_kept_out_unless_allowed(model, mount, other_user):
    refused = other_user("cat", mount(model) / TENSOR.name)
    assert refused.returncode != 0 and "Permission denied" in refused.stderr
    allowed = other_user("cat", mount(model, options="allow_other") / TENSOR.name, binary=True)
    assert allowed.stdout == TENSOR.data


def test_uid_gid_and_umask_shape_what_stat_shows(model, mount, other_user):
    options = f"allow_other,uid={OTHER_UID},gid=4242,umask=0077"
    mounted = mount(model, options=options)
    for path, mode in ((mounted.path, 0o500), (mounted / TENSOR.name, 0o400),
                       (mounted / ".npy", 0o500), (mounted / ".status", 0o400)):  # fmt: skip
        found = os.stat(path)
        assert (found.st_uid, found.st_gid) == (OTHER_UID, 4242)
        assert stat.S_IMODE(found.st_mode) == mode, path
    assert other_user("cat", mounted / TENSOR.name, binary=True).stdout == TENSOR.data
    stranger = run("setpriv", "--reuid=4343", "--regid=4343", "--clear-groups", "cat",
                   mounted / TENSOR.name)  # fmt: skip
    assert "Permission denied" in stranger.stderr


def test_words_that_mount_passes_are_accepted(model, mount):
    assert_serves(mount(model, options=",".join(MEANINGLESS)))
    assert_serves(mount(model, options="noexec,nosuid,nodev"))
    assert_serves(mount(model, options=",rw,,defaults,"))


@pytest.mark.parametrize("word", MEANINGLESS)
def test_each_word_that_mount_passes_is_accepted_alone(model, mount, word):
    assert_serves(mount(model, options=word))


@pytest.mark.parametrize("words", ["-o sloppy_nonsense", "-o rw,nonsense=1", "-o roo", "-q"])
def test_an_unknown_option_is_named_and_exits_with_1(model, mountpoint, words):
    result = safetensorfs(*words.split(), model, mountpoint)
    assert result.returncode == 1
    assert re.split("[, ]", words)[-1].split("=")[0].lstrip("-") in result.stderr
    assert mounts_at(mountpoint) == []


def test_a_dead_mount_is_named_with_what_clears_it(model, mount):
    mounted = mount(model)
    os.kill(mounted.pid, signal.SIGKILL)
    mounted.wait_for_end()
    with pytest.raises(OSError) as refused:
        os.listdir(mounted.path)
    assert refused.value.errno == errno.ENOTCONN
    result = safetensorfs(model, mounted.path)
    assert result.returncode == 2
    assert f"fusermount3 -uz {mounted.path}" in result.stderr
    output_of("fusermount3", "-uz", mounted.path)
    output_of(BINARY, model, mounted.path)
    assert_serves(mounted)


def test_a_second_mount_on_top_leaves_the_first(model, folder, mountpoint):
    other = write(folder / "other.safetensors", [tensor("other")]).path
    with Mount(model, mountpoint=mountpoint):
        output_of(BINARY, other, mountpoint)
        assert os.path.exists(os.path.join(mountpoint, "other"))
        output_of(*unmounting(mountpoint))
        assert_serves(mountpoint)


def test_one_source_mounts_many_times(model, mount):
    for place in [mount(model) for _ in range(5)]:
        assert_serves(place)


def test_the_daemon_holds_nothing_of_the_callers(model, mount):
    """Neither its pipes nor its session, so that closing a terminal does not end a mount."""
    mounted = mount(model)
    for descriptor in (0, 1, 2):
        assert os.readlink(f"/proc/{mounted.pid}/fd/{descriptor}") == "/dev/null"
    assert os.getsid(mounted.pid) != os.getsid(0)


def test_no_leftover_processes_after_a_failure(folder, mountpoint):
    (folder / "bad.safetensors").write_bytes(b"nothing")
    assert safetensorfs(folder / "bad.safetensors", mountpoint).returncode == 31
    assert safetensorfs("-f", folder / "bad.safetensors", mountpoint).returncode == 31
    assert safetensorfs("-o", "auto_unmount", folder / "none", mountpoint).returncode == 30
    assert daemon.daemons_at(mountpoint) == []


def test_help_and_version():
    helped = safetensorfs("--help")
    assert helped.returncode == 0 and helped.stderr == ""
    assert helped.stdout.startswith("usage:")
    for word in ("SOURCE", "MOUNTPOINT", "--check", "allow_other", "umask="):
        assert word in helped.stdout
    shown = safetensorfs("--version")
    assert shown.returncode == 0
    assert re.match(r"safetensorfs \d+\.\d+", shown.stdout)

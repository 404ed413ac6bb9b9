"""What cmake --install installs, and that mount(8) works with it.

The installed files are laid over /usr/sbin and the program's folder in a mount namespace of each
test's own, so that the machine is left as it is.
"""

import os
import stat

import pytest

from commands import BINARY, REPOSITORY, run, write_model

# Ends what a script leaves mounted: a daemon would keep its namespace.
PRELUDE = """
set -eu
for folder in /usr/sbin "$BIN"; do
  mkdir -p "$folder"
  mount -t overlay overlay -o lowerdir="$TREE$folder:$folder" "$folder"
done
mkdir "$MNT"
trap 'umount -l "$MNT" 2>/dev/null || true' EXIT
"""


def build_folder():
    return next(path for path in BINARY.parents if (path / "CMakeCache.txt").exists())


def prefix():
    cache = (build_folder() / "CMakeCache.txt").read_text().splitlines()
    return next(line.split("=", 1)[1] for line in cache
                if line.startswith("CMAKE_INSTALL_PREFIX:"))


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    folder = tmp_path_factory.mktemp("install")
    result = run("cmake", "--install", str(build_folder()), env={**os.environ, "DESTDIR": folder})
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture
def helper(tree):
    return str(tree / "usr/sbin/mount.safetensorfs")


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.safetensors"
    write_model(path)
    return path


@pytest.fixture
def shell(tree, tmp_path, model):
    """Runs a script where the tree is installed; $MODEL is a model, $MNT a folder to mount at."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts with mount(8)")
    environment = {**os.environ, "TREE": str(tree), "BIN": f"{prefix()}/bin",
                   "MODEL": str(model), "MNT": str(tmp_path / "mnt")}

    def run_script(script):
        return run("unshare", "--mount", "--propagation", "private", "bash", "-c",
                   PRELUDE + script, env=environment, cwd=tmp_path)

    return run_script


def installed(tree):
    return {"/" + str(path.relative_to(tree)): path for path in tree.rglob("*") if path.is_file()}


def test_the_program_the_man_page_and_the_mount_helper_are_installed(tree):
    files = installed(tree)
    program = files[f"{prefix()}/bin/safetensorfs"]
    assert run(program, "--version").returncode == 0
    page = files[f"{prefix()}/share/man/man1/safetensorfs.1"]
    assert page.read_text() == (REPOSITORY / "scripts/install/safetensorfs.1").read_text()
    helper = files["/usr/sbin/mount.safetensorfs"]
    assert stat.S_IMODE(helper.stat().st_mode) == 0o755
    assert f"binary='{prefix()}/bin/safetensorfs'" in helper.read_text()


def test_no_test_double_is_installed(tree):
    assert not [path for path in installed(tree) if "libcuda" in path or "/tests/" in path]


def test_the_helper_can_show_what_it_would_run(helper):
    program = f"{prefix()}/bin/safetensorfs"
    for words, shown in (
        ([], f"{program} model mnt"),
        (["-s", "-n", "-t", "safetensorfs"], f"{program} model mnt"),
        (["-o", "ro,uid=1"], f"{program} -o ro,uid=1 model mnt"),
        (["-o", "ro", "-o", "uid=1"], f"{program} -o ro,uid=1 model mnt"),
        (["-N", "17"], f"nsenter --target 17 --mount -- {program} model mnt"),
        (["-N", "/run/ns"], f"nsenter --mount=/run/ns -- {program} model mnt"),
    ):
        result = run(helper, "model", "mnt", "-fv", *words)
        assert (result.returncode, result.stdout, result.stderr) == (0, shown + "\n", "")


def test_the_helper_says_how_it_is_used(helper):
    for words in ([], ["model"], ["model", "mnt", "-x"], ["model", "mnt", "-f", "more"]):
        result = run(helper, *words)
        assert result.returncode == 1
        assert "usage: mount.safetensorfs SOURCE DIR" in result.stderr


def test_mount_and_umount(shell):
    result = shell("""
        mount -t safetensorfs model.safetensors mnt
        cat mnt/a
        echo
        findmnt -n -o FSTYPE,SOURCE "$MNT"
        umount mnt
        ls -A mnt
    """)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "data"
    kind, source = lines[1].split()
    assert kind == "fuse.safetensorfs"
    assert source.endswith("/model.safetensors")
    assert lines[2:] == []


def test_options_reach_the_program(shell):
    result = shell("""
        mount -t safetensorfs -o ro,nosuid,uid=12,gid=34,umask=077,nofail,x-systemd.automount \\
          "$MODEL" "$MNT"
        stat -c '%u %g %a' "$MNT/a"
        findmnt -n -o OPTIONS "$MNT"
    """)
    assert result.returncode == 0, result.stderr
    owner, options = result.stdout.splitlines()
    assert owner == "12 34 400"
    assert {"ro", "nosuid"} <= set(options.split(","))


def test_a_line_of_fstab(shell):
    result = shell("""
        echo "$MODEL $MNT safetensorfs allow_other,nofail 0 0" >fstab
        findmnt --verify --tab-file fstab
        mount -T fstab "$MNT"
        mount -T fstab -a
        findmnt -n -o TARGET "$MNT"
        cat "$MNT/a"
        umount "$MNT"
    """)
    assert result.returncode == 0, result.stdout + result.stderr
    assert ", 0 errors" in result.stdout + result.stderr
    # Once: -a knows that it is mounted.
    assert result.stdout.count("/mnt\ndata") == 1


def test_failures_are_mount_failures(shell, tmp_path):
    (tmp_path / "broken").write_bytes(b"<!DOCTYPE html>")
    result = shell("""
        for source in absent broken; do
          status=0
          mount -t safetensorfs "$source" "$MNT" || status=$?
          echo "$status"
        done
        status=0
        mount -t safetensorfs -o no_such_option "$MODEL" "$MNT" || status=$?
        echo "$status"
    """)
    assert result.stdout.split() == ["32", "32", "1"]
    assert "absent" in result.stderr
    assert "HTML" in result.stderr


def test_nofail_is_for_a_source_that_does_not_exist(shell, tmp_path):
    (tmp_path / "broken").write_bytes(b"<!DOCTYPE html>")
    result = shell("""
        for source in absent broken; do
          echo "$PWD/$source $MNT safetensorfs nofail 0 0" >fstab
          status=0
          mount -T fstab -a || status=$?
          echo "$status"
        done
    """)
    assert result.stdout.split() == ["0", "32"]

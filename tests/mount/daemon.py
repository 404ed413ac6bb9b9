"""Runs the daemon and the tools around it, and always cleans up what it started."""

import contextlib
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BINARY = os.path.realpath(
    os.environ.get("SAFETENSORFS", REPOSITORY / "build/release/safetensorfs")
)
DEADLINE = 180  # seconds; sanitizer builds on busy machines are slow, and nothing here is timed
IS_ROOT = os.geteuid() == 0
OTHER_UID = OTHER_GID = 65534
AS_OTHER_USER = (
    "setpriv", f"--reuid={OTHER_UID}", f"--regid={OTHER_GID}", "--clear-groups", "--",
)  # fmt: skip
LISTED_DOT_FILES = (".control", ".index.json", ".metadata.json", ".status", ".summary")
# The tests' own interpreter may lie in a folder that the other user cannot enter.
SYSTEM_PYTHON = shutil.which("python3", path="/usr/bin:/bin")


def run(*command, other_user=False, binary=False, **options):
    """Runs a command to its end; its output is text unless binary."""
    if other_user:
        command = AS_OTHER_USER + command
    if not binary:
        options.update(encoding="utf-8", errors="surrogateescape")
    options = {"stdin": subprocess.DEVNULL, "timeout": DEADLINE} | options
    return subprocess.run(
        [os.fspath(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def output_of(*command, **options):
    result = run(*command, **options)
    assert result.returncode == 0, (command, result.stderr)
    return result.stdout


def safetensorfs(*arguments, **options):
    return run(BINARY, *arguments, **options)


@contextlib.contextmanager
def scratch():
    """A folder that every user can enter, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="safetensorfs-test-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def daemons_at(mountpoint, binary=BINARY):
    """Pids of the daemons whose command line names this mountpoint."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
            if os.fsencode(mountpoint) in words and os.readlink(f"/proc/{pid}/exe") == binary:
                found.append(int(pid))
    return found


def wait_for_end(pidfd):
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    assert poll.poll(DEADLINE * 1000), "the daemon has not ended"


def mounts_at(path):
    """(type, source) of what is mounted at path, from the kernel's own table."""

    def plain(field):
        return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field)

    found = []
    table = Path("/proc/self/mountinfo").read_bytes().decode("latin-1")
    for line in table.splitlines():
        mount, _, filesystem = line.partition(" - ")
        if plain(mount.split(" ")[4]).encode("latin-1") == os.fsencode(path):
            kind, source = filesystem.split(" ")[:2]
            found.append((kind, os.fsdecode(plain(source).encode("latin-1"))))
    return found


@contextlib.contextmanager
def foreground(folder, *words, address=None, program=(BINARY,), **options):
    """A daemon in the foreground that has said that it is ready."""
    address = address or f"{folder}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(address.replace("@", "\0", 1) if address[0] == "@" else address)
        process = subprocess.Popen(
            [*program, *map(os.fspath, words)],
            env=os.environ | {"NOTIFY_SOCKET": address},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
        )  # fmt: skip
        try:
            pidfd = os.pidfd_open(process.pid)
            ready, _, _ = select.select([notify, pidfd], [], [], DEADLINE)
            os.close(pidfd)
            assert notify in ready, process.communicate()
            assert "READY=1" in notify.recv(4096).decode().split("\n")
            yield process
        finally:
            process.kill()
            process.communicate()


class Mount:
    """A source mounted in the background for the time of a with block.

    The spelling of mountpoint is handed to the daemon as it is; without one, a folder is made.
    started_by: words of a program that starts the daemon, such as prlimit's; program: what is run in
    place of the daemon, with the words that come first.
    environment: what is added to the daemon's.
    """

    def __init__(self, source, *, options="", mountpoint=None, other_user=False, cwd=None,
                 started_by=(), program=(BINARY,), environment=None):  # fmt: skip
        self.source, self.options, self.other_user, self.cwd = source, options, other_user, cwd
        self.started_by, self.program, self.environment = started_by, program, environment
        self.mountpoint, self.made, self.pidfd = mountpoint, None, None

    def __enter__(self):
        if self.mountpoint is None:
            self.made = self.mountpoint = make_mountpoint(self.other_user)
        self.path = Path(os.path.abspath(os.path.join(self.cwd or "", self.mountpoint)))
        words = ("-o", self.options) if self.options else ()
        try:
            self.result = run(
                *self.started_by, *self.program, self.source, self.mountpoint, *words,
                other_user=self.other_user, cwd=self.cwd,
                env=os.environ | (self.environment or {}),
            )  # fmt: skip
            assert self.result.returncode == 0, self.result.stderr
            (self.pid,) = daemons_at(self.mountpoint, self.program[0])
            self.pidfd = os.pidfd_open(self.pid)
        except BaseException:
            self._clean_up()
            raise
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None and mounts_at(self.path):
                self.unmount()
        finally:
            self._clean_up()

    def at(self, pid):
        """Speaks for a daemon that another started and ends."""
        self.path, self.pid = Path(os.path.abspath(self.mountpoint)), pid
        return self

    def __truediv__(self, name):
        return self.path / name

    def __fspath__(self):
        return os.fspath(self.path)

    def unmount(self):
        output_of(*unmounting(self.path, self.other_user), other_user=self.other_user)
        self.wait_for_end()

    def wait_for_end(self):
        wait_for_end(self.pidfd)

    def _clean_up(self):
        while mounts_at(self.path):
            if run(*unmounting(self.path, lazily=True)).returncode != 0:
                break
        for pid in daemons_at(self.mountpoint, self.program[0]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.pidfd is not None:
            os.close(self.pidfd)
        if self.made:
            os.rmdir(self.made)


def make_mountpoint(other_user=False):
    path = tempfile.mkdtemp(prefix="safetensorfs-mount-")
    os.chmod(path, 0o755)
    if other_user:
        os.chown(path, OTHER_UID, OTHER_GID)
    return path


def unmounting(path, other_user=False, lazily=False):
    if IS_ROOT and not other_user:
        return ("umount", *(["-l"] if lazily else []), path)
    return ("fusermount3", "-uz" if lazily else "-u", path)

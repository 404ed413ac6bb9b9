"""A mounted safetensorfs, with its process found."""

import os
import subprocess
import sys
import time
from pathlib import Path


def is_alive(pid):
    """Whether a process runs; a container's init may take seconds to bury one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX"


class Mount:
    """Mounts SOURCE in the background, as users do, for the length of a with statement.

    seconds: from starting the program until it returned, which is when the mount answers.
    """

    def __init__(self, binary, source, mountpoint, environment=None):
        self.command = [str(binary), str(source), str(mountpoint)]
        self.mountpoint = Path(mountpoint)
        self.environment = environment

    def __enter__(self):
        self.mountpoint.mkdir(exist_ok=True)
        begin = time.perf_counter()
        status = subprocess.run(self.command, env=self.environment).returncode
        self.seconds = time.perf_counter() - begin
        if status != 0:
            sys.exit(f"bench: {' '.join(self.command)}: exit status {status}")
        try:
            self.pid = self._find_process()
        except BaseException:
            self._unmount()
            raise
        return self

    def __exit__(self, *_):
        self._unmount()
        while is_alive(self.pid):
            time.sleep(0.002)

    def _unmount(self):
        unmount = ["umount"] if os.geteuid() == 0 else ["fusermount3", "-u"]
        subprocess.run([*unmount, str(self.mountpoint)], check=True)

    def _find_process(self):
        wanted = b"\0".join(word.encode() for word in self.command) + b"\0"
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (entry / "cmdline").read_bytes().endswith(wanted):
                    return int(entry.name)
            except OSError:
                pass  # it has ended meanwhile
        sys.exit(f"bench: no process runs {' '.join(self.command)}")

    def resident_bytes(self):
        """VmRSS and RssAnon: with and without the source's own pages that are mapped."""
        fields = dict(line.split(":", 1) for line in
                      Path(f"/proc/{self.pid}/status").read_text().splitlines())
        return tuple(int(fields[key].split()[0]) * 1024 for key in ("VmRSS", "RssAnon"))


class Server:
    """Another FUSE server, COMMAND in the foreground, for the length of a with statement.

    In a session of its own, as a daemon is: the kernel shares CPUs out by session.
    """

    def __init__(self, command, mountpoint, environment=None):
        self.command = [str(word) for word in command]
        self.mountpoint = Path(mountpoint)
        self.environment = environment

    def __enter__(self):
        self.mountpoint.mkdir(exist_ok=True)
        self.process = subprocess.Popen(self.command, env=self.environment,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE,
                                        start_new_session=True)
        self.pid = self.process.pid
        try:
            self._await_mount()
        except BaseException:
            self.process.kill()
            raise
        return self

    def __exit__(self, *_):
        unmount = ["umount"] if os.geteuid() == 0 else ["fusermount3", "-u"]
        subprocess.run([*unmount, str(self.mountpoint)], check=True)
        self.process.communicate()

    def _await_mount(self):
        deadline = time.monotonic() + 60
        while not os.path.ismount(self.mountpoint):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                message = self.process.communicate()[1].decode(errors="replace").strip()
                raise ServerError(f"{' '.join(self.command)}: does not mount: {message}")
            time.sleep(0.002)


class ServerError(Exception):
    """A server that does not mount."""

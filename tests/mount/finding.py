"""A mount whose devices a test finds, and makes fail."""

import os
import socket

from daemon import BINARY, DEADLINE

DEVICE_SERVER = os.path.realpath(
    os.environ.get("DEVICE_SERVER", os.path.join(os.path.dirname(BINARY), "tests/device_server"))
)


class Finding:
    """Answers a daemon that looks for devices. Close it before the daemon ends."""

    def __init__(self, folder):
        self.path = os.fspath(folder / "finding")
        self.program = (DEVICE_SERVER, self.path)
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listening.bind(self.path)
        self.listening.listen()
        self.listening.settimeout(DEADLINE)
        self.connection = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listening.close()
        if self.connection:
            self.connection.close()

    def await_run(self):
        """Until the daemon looks for devices."""
        if self.connection:
            self.connection.close()
        self.connection, _ = self.listening.accept()
        self.connection.settimeout(DEADLINE)

    def has_begun(self):
        """Whether the daemon looks for devices and nobody has noticed."""
        self.listening.setblocking(False)
        try:
            self.listening.accept()[0].close()
            return True
        except BlockingIOError:
            return False
        finally:
            self.listening.settimeout(DEADLINE)

    def answer(self, *names):
        self.connection.sendall(" ".join(names).encode() + b"\n")

    def answer_nothing(self, reason):
        self.connection.sendall(f"!{reason}\n".encode())

    def make(self, line):
        """Makes something happen to a device, such as "die gpu it was killed"."""
        self.connection.sendall(line.encode() + b"\n")
        assert self.connection.recv(100) == b"done\n"

"""A source that comes to a halt, and writers that wait for it for as long as a test wants."""

import contextlib
import os
import signal
import subprocess

from checkpoints import blob, tensor, write
from commands import PAGE, control_of, loads, write_once
from daemon import BINARY, DEADLINE, make_mountpoint

SLOW_SERVER = os.environ.get("SLOW_SERVER", os.path.join(os.path.dirname(BINARY), "slow_server"))
SMALL = [f"small.{n}" for n in range(100)]
MIB = 1 << 20
HELD_NBYTES = 40 * MIB
# A load of the held tensor gets this far: more than a device reads in one step, less than all.
OPEN_NBYTES = 20 * MIB
ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
HARMLESS = (signal.SIGUSR1, signal.SIGWINCH, signal.SIGCHLD, signal.SIGALRM, signal.SIGURG)


class Gate:
    """A checkpoint of small tensors and "held", a large one that cannot be read to its end yet."""

    def __init__(self, folder):
        held = blob("held", bytes(HELD_NBYTES))
        self.checkpoint = write(folder / "gated.safetensors", [*map(tensor, SMALL), held])
        self.limit = -(-self.checkpoint.offsets["held"] // PAGE) * PAGE + OPEN_NBYTES
        self.place = make_mountpoint()
        self.source = os.path.join(self.place, "model.safetensors")

    def __enter__(self):
        self.server = subprocess.Popen(
            [SLOW_SERVER, self.checkpoint.path, self.place],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.server.stdout.readline() == "ready\n"
        self._set_limit(self.limit)
        return self

    def __exit__(self, *_):
        self.open()
        self.server.terminate()
        self.server.wait(DEADLINE)
        self.server.stdin.close()
        self.server.stdout.close()
        os.rmdir(self.place)

    def wait_until_held(self):
        """Until a read waits."""
        assert self.server.stdout.readline() == "held\n"

    def open(self):
        # Closing stdin would do, but for the writers, which have it too.
        self._set_limit(1 << 62)

    def _set_limit(self, nbytes):
        print(nbytes, file=self.server.stdin, flush=True)


def _returns(*_):
    pass


class Writer:
    """A process that writes to .control once and tells of it: "done" or an errno's name."""

    def __init__(self, mounted, text, handled=()):
        """handled: signals that have a handler, which returns; the others have their default."""
        self.said, self.end = None, None
        self.outcome, outcome = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                for number in ENDING + HARMLESS:
                    signal.signal(number, _returns if number in handled else signal.SIG_DFL)
                control = os.open(control_of(mounted), os.O_WRONLY)
                os.write(outcome, write_once(control, text.encode()).encode())
                os.close(outcome)
                with contextlib.suppress(OSError):
                    os.close(control)
            finally:
                os._exit(0)
        os.close(outcome)

    def kill(self, number):
        os.kill(self.pid, number)

    def written(self):
        """Waits for the end of the write alone. Its outcome; "" if the process came to none."""
        if self.said is None:
            with open(self.outcome) as pipe:
                self.said = pipe.read()
        return self.said

    def finish(self):
        """Waits for the end. The outcome, or the name of the signal that ended the process."""
        self.written()
        if self.end is None:
            _, status = os.waitpid(self.pid, 0)
            ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
            self.end = signal.Signals(ended_by).name if ended_by else self.said
        return self.end

    def is_known(self, mounted):
        return any(load["pid"] == self.pid for load in loads(mounted))

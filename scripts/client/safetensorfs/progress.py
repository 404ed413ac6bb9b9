"""Tells how far the commands of this process are, while they run."""

import os
import threading

FIRST_SECONDS = 0.02
INTERVAL_SECONDS = 0.1


class Progress:
    """Calls callback(bytes_done, bytes_total) from a thread of its own during a with block.

    The block itself blocks in a write: it stays in the caller's thread, since Ctrl-C interrupts
    the main thread and no other. Bytes are summed over the devices of a command. An exception
    of callback ends the reports, not the command; it is raised when the block has ended.
    """

    def __init__(self, read_status, callback):
        self._read_status, self._callback = read_status, callback
        # A writer is known by its thread, which in the main thread is the process.
        self._writers = {os.getpid(), threading.get_native_id()}
        self._ended, self._failure, self._last = threading.Event(), None, None
        self._thread = threading.Thread(
            target=self._poll, name="safetensorfs progress", daemon=True
        )

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, kind, *_):
        self._ended.set()
        self._thread.join()
        if kind is not None:
            return
        if self._failure is None and self._last is not None and self._last[0] < self._last[1]:
            self._callback(self._last[1], self._last[1])
        if self._failure is not None:
            raise self._failure

    def _poll(self):
        seconds = FIRST_SECONDS
        while not self._ended.wait(seconds):
            seconds = INTERVAL_SECONDS
            loads = self._own_loads()
            if not loads:
                continue
            self._last = (
                sum(load["nbytes_done"] for load in loads),
                sum(load["nbytes_total"] for load in loads),
            )
            try:
                self._callback(*self._last)
            except BaseException as error:
                self._failure = error
                return

    def _own_loads(self):
        try:
            loads = self._read_status().get("loads", [])
        except (OSError, ValueError):
            return []  # the command itself says what is wrong
        own = [load for load in loads if load.get("pid") in self._writers]
        # The daemon knows no pid of a process in another PID namespace.
        unknown = [load for load in loads if load.get("pid") == 0]
        return own or (unknown if len(unknown) == 1 else [])

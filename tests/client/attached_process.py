"""Other processes that attach, which a test tells step by step what to do.

    with Process() as client:
        client.do("array = mount.attach('cuda:0', 'a', 'cai')", mount=path)
        assert client.tell("bytes_on_device(array)") == b"..."

Run as a program, this file is such a process: it reads pickled (kind, code) from its standard
input, and answers with ("value", value) or ("raised", type, errno, sentence).
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys


class Raised(Exception):
    """What the code in the process has raised. str() is its sentence, kind its class's name."""

    def __init__(self, kind, errno, sentence):
        super().__init__(sentence)
        self.kind, self.errno = kind, errno


class Process:
    """A process with the client in it.

    It has the names of safetensorfs, those of the functions below, and what do() has made.
    started_by: words of a program that starts it. variables: what is added to its environment.
    """

    def __init__(self, *started_by, **variables):
        from expected import environment, python

        self._process = subprocess.Popen(
            [*started_by, *python(__file__)], env=environment(**variables),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.pid = self._process.pid
        try:
            self.do("import gc, os, signal, threading; from safetensorfs import *")
        except BaseException:
            self.kill()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def do(self, code, **names):
        """Runs statements, with names set before. Raises Raised."""
        self._ask("do", code, names)

    def tell(self, expression, **names):
        """The value of an expression, which pickle can carry. Raises Raised."""
        return self._ask("tell", expression, names)

    def end(self):
        """Lets it end as programs do. Returns the exit status."""
        self._process.stdin.close()
        return self._process.wait(60)

    def kill(self):
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def _ask(self, *question):
        pickle.dump(question, self._process.stdin)
        self._process.stdin.flush()
        try:
            answer = pickle.load(self._process.stdout)
        except EOFError:
            raise AssertionError(f"the process has died: {self._process.wait()}") from None
        if answer[0] == "raised":
            raise Raised(*answer[1:])
        return answer[1]


def bytes_on_device(array):
    """In the simulation a device's memory is mapped into the process that opens it."""
    import ctypes

    if hasattr(array, "untyped_storage"):
        pointer, nbytes = array.data_ptr(), array.numel() * array.element_size()
    elif hasattr(array, "pointer"):
        pointer, nbytes = array.pointer, array.nbytes
    else:
        pointer, nbytes = array.data.ptr, array.nbytes
    return ctypes.string_at(pointer, nbytes) if nbytes else b""


def without_driver():
    """Lets PyTorch make CUDA tensors of pointers on a machine on which it cannot use them."""
    import torch

    torch.cuda.init = lambda: None


def exit_status_of_child(function):
    """Forks; the child's exit status is what function returns, 99 if it raises."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            status = function()
        finally:
            os._exit(status or 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def open_files(folder):
    """Names of the files below a folder that this process has open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{number}")
            if target.startswith(f"{folder}/"):
                found.append(os.path.relpath(target, folder))
    return sorted(found)


def _serve(questions, answers):
    names = globals()
    while True:
        try:
            kind, code, given = pickle.load(questions)
        except EOFError:
            return
        names.update(given)
        try:
            value = exec(code, names) if kind == "do" else eval(code, names)
            answer = pickle.dumps(("value", value))
        except BaseException as error:
            sentence = str(error)
            answer = pickle.dumps(
                ("raised", type(error).__name__, getattr(error, "errno", None), sentence)
            )
            error.__traceback__ = None  # its frames would keep arrays alive
        answers.write(answer)
        answers.flush()


if __name__ == "__main__":
    # What the code prints must not come between the answers.
    sent = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _serve(sys.stdin.buffer, sent)

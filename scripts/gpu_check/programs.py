"""The processes of gpu_check, the program: lines of JSON from it, lines of words to it."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from table import Failure

DEADLINE = 120  # seconds


class Program:
    """A process that answers until it is told to end."""

    def __init__(self, command, cpus=None):
        before = (lambda: os.sched_setaffinity(0, cpus)) if cpus else None
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            preexec_fn=before,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def write(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise Failure(f"gpu_check ended with status {self.process.wait(DEADLINE)}")
        return json.loads(line)


def lines_of(command, timeout=DEADLINE, stdin=""):
    """What a program that ends by itself prints."""
    done = subprocess.run(
        [str(word) for word in command],
        input=stdin,
        text=True,
        capture_output=True,
        timeout=timeout,
    )
    if done.returncode != 0:
        # The last line of a traceback says what; a message is one line anyway.
        last = (done.stderr.strip().splitlines() or ["nothing said"])[-1]
        raise Failure(f"status {done.returncode}: {last}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def python_lines(script, *arguments, **keywords):
    """The same for a script beside this one."""
    return lines_of([sys.executable, Path(__file__).parent / script, *arguments], **keywords)


class Refused(Exception):
    """A command's errno and sentence."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


class Session(Program):
    """The devices of a checkpoint, see tests/gpu_check/session.h."""

    def __init__(self, program, source, cpus=None, idle_milliseconds=60000):
        super().__init__([program, "session", source, idle_milliseconds], cpus)
        self._next = 1
        self._answers = {}

    def begin(self, *words):
        number, self._next = self._next, self._next + 1
        self.write(" ".join(map(str, (number, *words))))
        return number

    def wait(self, number):
        while number not in self._answers:
            answer = self.read()
            self._answers[answer["id"]] = answer
        return self._answers.pop(number)

    def ask(self, *words):
        """Sends a request and waits for its answer; raises Refused."""
        answer = self.wait(self.begin(*words))
        if answer.get("error"):
            raise Refused(answer["error"], answer["text"])
        return answer

    def errno_of(self, *words):
        try:
            return 0, self.ask(*words)["text"]
        except Refused as refused:
            return refused.code, str(refused)


class Context(Program):
    """A context of its own, which sees what memory others leave."""

    def __init__(self, program, ordinal):
        super().__init__([program, "context", ordinal])
        try:
            self.ready = self.read()
        except Failure:
            self.__exit__()
            raise

    def free(self, *words):
        """Free bytes, after "take N" or "give"."""
        self.write(" ".join(map(str, words)) or "free")
        return self.read()["free_nbytes"]

    def free_once_still(self):
        """Free bytes once they have stopped changing; a process that ends gives back late."""
        last, since = self.free(), time.monotonic()
        end = since + 10
        while time.monotonic() < min(end, since + 0.3):
            time.sleep(0.02)
            now = self.free()
            if now != last:
                last, since = now, time.monotonic()
        return last

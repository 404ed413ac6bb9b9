"""Rounds: each measures everything once, what is compared next to each other."""

import os
import subprocess
import time
from pathlib import Path

from .report import Series


def interleave(actions, rounds):
    """{what: {way: function}} -> {what: {way: Series}}.

    A function returns a number, or a dict of them that becomes Series each. The ways of one action
    run one after the other, in an order that turns round by round.
    """
    values = {what: {way: [] for way in ways} for what, ways in actions.items()}
    for number in range(rounds):
        for what, ways in actions.items():
            names = list(ways)
            turn = number % len(names)
            for way in names[turn:] + names[:turn]:
                values[what][way].append(ways[way]())
    return {what: {way: _series(of) for way, of in ways.items()} for what, ways in values.items()}


def _series(values):
    if isinstance(values[0], dict):
        return {key: Series([value[key] for value in values]) for key in values[0]}
    return Series(values)


def run_timed(*words, folder=None):
    """Seconds of a command whose output goes nowhere."""
    environment = {**os.environ, "LC_ALL": "C"}
    begin = time.perf_counter()
    subprocess.run([str(word) for word in words], cwd=folder, check=True, env=environment,
                   stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def cat_all(folder):
    """Seconds of `cat *`."""
    names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    return run_timed("cat", "--", *names, folder=folder)


def why_caches_stay():
    """Why the page cache cannot be dropped; empty where it can."""
    if os.geteuid() != 0:
        return "only root may drop caches"
    if not os.access("/proc/sys/vm/drop_caches", os.W_OK):
        return "/proc/sys/vm/drop_caches cannot be written"
    return ""


def drop_caches():
    """Page cache, dentries and inodes, of sources too."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def warm(path):
    """Brings a file into the page cache."""
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 24):
            pass

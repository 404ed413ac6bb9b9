"""Progress is a bar on a terminal and a line now and then elsewhere."""

import io

import pytest

from safetensorfs import bar
from safetensorfs.bar import Bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    clock = [100.0]
    monkeypatch.setattr(bar.time, "monotonic", lambda: clock[0])
    return clock


def test_a_terminal_gets_a_bar_that_is_cleared_in_the_end(clock):
    terminal = Terminal()
    with Bar("load cpu", terminal) as shown:
        clock[0] += 2
        shown.show(250_000_000, 1_000_000_000)
        shown.show(1_000_000_000, 1_000_000_000)
    first, second, end = terminal.getvalue().split("\r")[1:]
    assert first == f"load cpu [{'#' * 8}{'.' * 24}]  25% 250.0 of 1,000.0 MB, 0.12 GB/s\x1b[K"
    assert len(first.removesuffix("\x1b[K")) == 79
    assert "." not in second.split("]")[0] and "100% 1,000.0 of 1,000.0 MB" in second
    assert end == "\x1b[K"


def test_a_narrow_terminal_gets_no_bar_and_nothing_wraps(clock, monkeypatch):
    monkeypatch.setattr(bar.os, "get_terminal_size", lambda _: bar.os.terminal_size((30, 5)))
    terminal = Terminal()
    monkeypatch.setattr(terminal, "fileno", lambda: 2)
    Bar("load cpu", terminal).show(1, 2)
    line = terminal.getvalue().strip("\r").removesuffix("\x1b[K")
    assert line.startswith("load cpu  50%") and len(line) <= 29


def test_elsewhere_a_line_comes_every_few_seconds(clock):
    file = io.StringIO()
    with Bar("load cpu", file) as shown:
        for second in range(12):
            clock[0] = 100.0 + second
            shown.show(second * 1_000_000_000, 11_000_000_000)
    assert file.getvalue() == (
        "load cpu: 5,000.0 of 11,000.0 MB, 1.00 GB/s\n"
        "load cpu: 10,000.0 of 11,000.0 MB, 1.00 GB/s\n"
    )


def test_a_dumb_terminal_gets_lines(clock, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()
    with Bar("load cpu", terminal) as shown:
        clock[0] += 6
        shown.show(0, 0)
    assert terminal.getvalue() == "load cpu: 0.0 of 0.0 MB, 0.00 GB/s\n"

"""The rows of a check: what, figures, and whether it is as it should be."""

import sys
import textwrap
import time


class Skip(Exception):
    """Why something cannot be checked here."""


class Failure(Exception):
    """What is not as it should be."""


class Table:
    """Rows are printed when they are known, so that something is there if the check is ended."""

    def __init__(self):
        self.is_over = False  # time is up: nothing more is begun
        self._rows = []
        self._begin = time.monotonic()

    def add(self, what, figures, verdict="ok"):
        self._rows.append((what, verdict, figures))
        print(
            f"{time.monotonic() - self._begin:6.1f} s  {what}: {verdict}  {figures}",
            file=sys.stderr,
            flush=True,
        )

    def check(self, what, function, *arguments):
        """Adds a row with the figures that the function returns, or why there are none."""
        if self.is_over:
            return self.add(what, "time is up", "FAILED")
        try:
            self.add(what, function(*arguments))
        except Skip as reason:
            self.add(what, str(reason), "skipped")
        except Exception as error:  # whatever it is, the other rows are still to be had
            name = "" if isinstance(error, Failure) else f"{type(error).__name__}: "
            self.add(what, f"{name}{error}", "FAILED")

    def run_group(self, title, function, *arguments):
        """Calls what adds rows of its own; adds one where that fails as a whole."""
        if self.is_over:
            return self.add(title, "time is up", "FAILED")
        try:
            function(*arguments)
        except Exception as error:
            self.add(title, f"{type(error).__name__}: {error}", "FAILED")

    def has_failed(self):
        return any(verdict == "FAILED" for _, verdict, _ in self._rows)

    def text(self, title):
        width = max(len(what) for what, _, _ in self._rows)
        lines = [title, ""]
        for what, verdict, figures in self._rows:
            first, *more = textwrap.wrap(figures, 120) or [""]
            lines.append(f"{what:{width}}  {verdict:7}  {first}")
            lines += [" " * (width + 11) + line for line in more]
        counts = [
            sum(verdict == wanted for _, verdict, _ in self._rows)
            for wanted in ("ok", "FAILED", "skipped")
        ]
        lines += [
            "",
            "{} ok, {} FAILED, {} skipped".format(*counts)
            + f", {time.monotonic() - self._begin:.0f} s",
        ]
        return "\n".join(lines)


def gigabytes(value):
    return f"{value / 1e9:.2f}"

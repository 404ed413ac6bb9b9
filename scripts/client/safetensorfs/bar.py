"""Progress for people: a bar on a terminal, now and then a line elsewhere."""

import os
import time

LINE_SECONDS = 5


class Bar:
    """Shows how far something is, during a with block. show() may come from any one thread."""

    def __init__(self, title, file):
        self._title, self._file = title, file
        self._terminal = file.isatty() and os.environ.get("TERM") != "dumb"
        self._begin = self._line_due = time.monotonic()
        self._line_due += LINE_SECONDS
        self._drawn = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._drawn:
            self._file.write("\r\x1b[K")
            self._file.flush()

    def show(self, done, total):
        now = time.monotonic()
        speed = done / 1e9 / max(now - self._begin, 1e-9)
        figures = f"{_megabytes(done)} of {_megabytes(total)} MB, {speed:.2f} GB/s"
        if self._terminal:
            self._file.write("\r" + self._line(done / total if total else 1.0, figures) + "\x1b[K")
            self._file.flush()
            self._drawn = True
        elif now >= self._line_due:
            self._line_due = now + LINE_SECONDS
            print(f"{self._title}: {figures}", file=self._file, flush=True)

    def _line(self, share, figures):
        try:
            columns = os.get_terminal_size(self._file.fileno()).columns or 80
        except OSError:
            columns = 80
        text = f"{share:4.0%} {figures}"
        # One column less than there are, or some terminals wrap.
        width = columns - 1 - len(f"{self._title} [] {text}")
        if width >= 5:
            full = round(width * share)
            text = f"[{'#' * full}{'.' * (width - full)}] {text}"
        return f"{self._title} {text}"[: columns - 1]


def _megabytes(nbytes):
    return f"{nbytes / 1e6:,.1f}"

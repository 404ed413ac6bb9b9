"""Commands in the language of .control, and the writing of them."""

import ctypes
import errno
import os
import re

from .errors import CommandError

# The kernel cuts a longer write where its pages are too many for one request (32 before Linux 4.20,
# 256 since). Since buffers begin anywhere in a page, that is at a length like any other, and the
# daemon could not tell the piece from a line.
WRITE_NBYTES = 1 << 16

_PLAIN_WORD = re.compile(r"[A-Za-z0-9_.:/@%+,=-]+")
_CONTROL = "\x01-\x1f\x7f"
_SPECIAL = re.compile(rf"[{_CONTROL}\\']")
# Outside quotes; `!`, `^` and `-` are left alone, since quoted they would lose their meaning
# in brackets.
_NOT_GLOB = re.compile(
    rf"(?P<control>[{_CONTROL}])|[^A-Za-z0-9_.:/@%+,=*?\[\]!^\u0080-\U0010ffff-]"
)

# os.write() repeats what a signal has interrupted. A cancelled command must not be repeated, and
# its descriptor answers every further write with EINTR again, without end.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.write.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]
_libc.write.restype = ctypes.c_ssize_t


def literal(name):
    """The word that stands for name itself, whatever characters it holds except NUL."""
    _refuse_nul(name)
    if _PLAIN_WORD.fullmatch(name):
        return name
    if not _SPECIAL.search(name):
        return f"'{name}'"
    return "$'" + _SPECIAL.sub(_ansi_escape, name) + "'"


def glob(pattern):
    """The word for a pattern in which `*`, `?` and `[...]` are special and nothing else is.

    A literal star is `[*]`, as in Python's glob.escape().
    """
    _refuse_nul(pattern)
    return _NOT_GLOB.sub(_glob_escape, pattern) or "''"


def _ansi_escape(match):
    character = match[0]
    return "\\" + character if character in "\\'" else f"\\x{ord(character):02x}"


def _glob_escape(match):
    return f"$'\\x{ord(match[0]):02x}'" if match["control"] else "\\" + match[0]


def _refuse_nul(text):
    if "\0" in text:
        raise ValueError(
            f"{text!r}: a command holds no NUL; the tensor's file name, which "
            "commands take too, spells it %00"
        )


def pieces_of(script):
    """Cuts a script (bytes, each line ended by a newline) into what single writes take.

    Cuts are at line ends. Only lines longer than a write are cut within, at a length that the
    daemon knows for a piece's: it waits for the rest.
    """
    begin = 0
    while len(script) - begin > WRITE_NBYTES:
        end = script.rfind(b"\n", begin, begin + WRITE_NBYTES) + 1 or begin + WRITE_NBYTES
        yield script[begin:end]
        begin = end
    yield script[begin:]


def run(folder, command):
    """Writes a command to the control file of a mount. Returns the report once it is done.

    command: a line, without its newline. Raises CommandError with the daemon's sentence where
    it fails. A signal whose handler raises (Ctrl-C) cancels the command if it comes to
    this thread, which the main thread's are.
    """
    path = os.path.join(folder, ".control")
    try:
        control = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise _cannot_open(error, path) from None
    try:
        for piece in pieces_of(command.encode("utf-8", "surrogateescape") + b"\n"):
            while piece:
                written = _libc.write(control, piece, len(piece))
                if written < 0:
                    raise _failure(ctypes.get_errno(), control, path)
                piece = piece[written:]
        return _read_report(control)
    finally:
        os.close(control)


def _failure(number, control, path):
    report = _read_report(control)
    # One line of a script is a line of the report for each device.
    sentence = "; ".join(report.split("\n")[:-1]) or os.strerror(number)
    return CommandError(number, sentence, path, report)


def _read_report(control):
    """The report begins where the write has left the position."""
    chunks = []
    while True:
        chunk = os.read(control, 1 << 16)
        if not chunk:
            return b"".join(chunks).decode("utf-8", "surrogateescape")
        chunks.append(chunk)


def _cannot_open(error, path):
    sentence = error.strerror
    if error.errno == errno.EACCES:
        try:
            owner = f"uid {os.stat(path).st_uid}"
        except OSError:
            owner = "the user who mounted it"
        sentence = (
            f"{owner} commands this mount, and the group given with -o gid=; not uid {os.geteuid()}"
        )
    elif error.errno == errno.ENOENT:
        sentence = "no control file: it belongs to a mounted checkpoint; is it mounted?"
    return CommandError(error.errno, sentence, path)

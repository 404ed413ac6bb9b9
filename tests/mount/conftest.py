import contextlib
import os
import stat
from pathlib import Path

import pytest

import daemon


@pytest.fixture(scope="session", autouse=True)
def fuse_for_everyone():
    """Lets the other user mount, which takes the device and one line of configuration."""
    if not daemon.IS_ROOT:
        return
    if not os.path.exists("/dev/fuse"):
        os.mknod("/dev/fuse", stat.S_IFCHR | 0o666, os.makedev(10, 229))
    os.chmod("/dev/fuse", 0o666)
    configuration = Path("/etc/fuse.conf")
    text = configuration.read_text() if configuration.exists() else ""
    if "user_allow_other" not in text.splitlines():
        configuration.write_text(text.rstrip("\n") + "\nuser_allow_other\n")


@pytest.fixture
def folder():
    with daemon.scratch() as path:
        yield path


@pytest.fixture
def mount():
    """Mounts any number of sources until the test ends."""
    with contextlib.ExitStack() as stack:
        yield lambda *words, **options: stack.enter_context(daemon.Mount(*words, **options))


@pytest.fixture
def other_user():
    """run(), as an ordinary user."""
    if not daemon.IS_ROOT:
        pytest.skip("only root can become another user")
    return lambda *command, **options: daemon.run(*command, other_user=True, **options)

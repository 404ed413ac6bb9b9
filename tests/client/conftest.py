import contextlib
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "mount"), str(TESTS.parent / "scripts/client")]

import daemon  # noqa: E402


@pytest.fixture
def folder():
    with daemon.scratch() as path:
        yield path


@pytest.fixture
def mounting():
    """Mounts any number of sources until the test ends."""
    with contextlib.ExitStack() as stack:
        yield lambda *words, **options: stack.enter_context(daemon.Mount(*words, **options))

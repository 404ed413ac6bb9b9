"""What the tests in this folder share."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from driver import DEADLINE, CudaError

MIB = 1 << 20
CONTEXT = 300 * MIB  # bytes that one costs by default


@contextlib.contextmanager
def refused(code):
    with pytest.raises(CudaError) as caught:
        yield
    assert caught.value.code == code


def start_python(simulation, program, **environment):
    """A program of its own, which can import driver."""
    folders = {"PYTHONPATH": str(Path(__file__).parent), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, **simulation.environment(), **folders, **environment},
        stdin=subprocess.PIPE,
    )


def run_python(simulation, program, **environment):
    with start_python(simulation, program, **environment) as child:
        try:
            child.communicate(timeout=2 * DEADLINE)
        finally:
            child.kill()
    assert child.returncode == 0

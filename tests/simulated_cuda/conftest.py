import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from driver import DEADLINE, CudaError, Remote
from simulation import Simulation

MIB = 1 << 20
CONTEXT = 300 * MIB  # what one costs by default


@pytest.fixture
def simulation():
    folder = tempfile.mkdtemp()
    os.chmod(folder, 0o755)
    yield Simulation(Path(folder) / "simulation")
    shutil.rmtree(folder)


@pytest.fixture
def process(simulation):
    """Starts processes that live until the test ends."""
    with contextlib.ExitStack() as stack:

        def start(user=None, before=(), **environment):
            remote = Remote({**simulation.environment(), **environment}, user, before)
            return stack.enter_context(remote)

        yield start


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

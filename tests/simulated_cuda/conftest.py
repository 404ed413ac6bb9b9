import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from driver import Remote
from simulation import Simulation


@pytest.fixture
def simulation(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
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

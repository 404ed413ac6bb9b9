import contextlib
import os
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [
    str(TESTS / "mount"), str(TESTS / "simulated_cuda"), str(TESTS.parent / "scripts/client"),
]  # fmt: skip

import daemon  # noqa: E402
from attached_process import Process  # noqa: E402
from simulation import Simulation  # noqa: E402

MISUSES = (
    "freed_while_imported", "freed_while_copying", "closed_while_copying", "copies_outside_memory",
    "old_abi_calls",
)  # fmt: skip


@pytest.fixture
def folder():
    with daemon.scratch() as path:
        yield path


@pytest.fixture
def mounting():
    """Mounts any number of sources until the test ends."""
    with contextlib.ExitStack() as stack:
        yield lambda *words, **options: stack.enter_context(daemon.Mount(*words, **options))


@pytest.fixture
def simulation(folder, monkeypatch):
    """The driver that gpu_mounting's daemons and processes() find: two devices, and faults."""
    if "SIMULATED_CUDA_LIBRARY" not in os.environ:
        pytest.skip("built without cuda devices")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    made = Simulation(folder / "simulation", devices=2)
    yield made
    counts = made.counters()
    assert {name: counts[name] for name in MISUSES} == dict.fromkeys(MISUSES, 0)


@pytest.fixture
def gpu_mounting(simulation, mounting):
    """mounting(), of daemons with GPUs."""
    return lambda *words, **options: mounting(
        *words, environment=simulation.environment(), **options
    )


@pytest.fixture
def processes(simulation):
    """Starts processes that live until the test ends, see attached_process.py."""
    with contextlib.ExitStack() as stack:

        def start(*started_by, **variables):
            variables = {**simulation.environment(), **variables}
            return stack.enter_context(Process(*started_by, **variables))

        yield start

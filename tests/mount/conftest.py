import contextlib
import os
import stat
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "simulated_cuda"))

import daemon
from commands import DEVICE, locked_nbytes
from simulation import Simulation

# What the simulated driver counts that a real one would not survive.
MISUSES = (
    "freed_while_imported", "freed_while_copying", "closed_while_copying", "copies_outside_memory",
    "old_abi_calls",
)  # fmt: skip


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


@pytest.fixture(autouse=True)
def driver_of_the_device(request, monkeypatch):
    """Where DEVICE is the simulation's, every daemon finds it, however a test starts it."""
    if DEVICE == "cpu":
        yield
        return
    simulation = request.getfixturevalue("simulation")
    for name, value in simulation.environment().items():
        monkeypatch.setenv(name, value)
    yield
    counts = simulation.counters()
    assert {name: counts[name] for name in MISUSES} == dict.fromkeys(MISUSES, 0)


@pytest.fixture
def held_nbytes(request):
    """held_nbytes(mounted): what DEVICE really holds, whatever the daemon says of it."""
    if DEVICE == "cpu":
        return locked_nbytes
    simulation, ordinal = request.getfixturevalue("simulation"), int(DEVICE.partition(":")[2])
    return lambda _: simulation.allocated_bytes(ordinal)


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


@pytest.fixture
def simulation(folder):
    """The driver that daemons of gpu_mount find: two devices, and the faults that a test wants."""
    if "SIMULATED_CUDA_LIBRARY" not in os.environ:
        pytest.skip("built without cuda devices")
    return Simulation(folder / "simulation", devices=2)


@pytest.fixture
def gpu_mount(mount, simulation):
    """mount(), of daemons that find the simulated driver."""
    return lambda *words, **options: mount(
        *words, environment=simulation.environment(), **options
    )

"""scripts/gpu_check.sh runs to its end, and tells what fails from what cannot be checked."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(TOP / "tests/simulated_cuda"))

from simulation import Simulation  # noqa: E402

GROUP = "the bytes of every dtype, leases"


@pytest.fixture
def simulation(tmp_path):
    return Simulation(tmp_path / "simulation", memory=4 << 30)


def run(simulation, tmp_path, *options, **environment):
    """Exit status and {row: verdict}."""
    done = subprocess.run(
        [TOP / "scripts/gpu_check.sh", "--quick", "--dir", tmp_path, *options],
        env={**os.environ, **simulation.environment(), "PYTHON": sys.executable, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    print(done.stdout, done.stderr)
    rows = re.findall(r"^(\S.*?)  +(ok|FAILED|skipped)  ", done.stdout, re.MULTILINE)
    return done.returncode, dict(rows)


def test_every_row_is_right_with_a_driver_that_works(simulation, tmp_path):
    simulation.configure(devices=2)
    status, rows = run(simulation, tmp_path)
    assert status == 0
    skipped = [row for row, verdict in rows.items() if verdict == "skipped"]
    wanting = r"PyTorch|CuPy|torch\.|\d+ (readers|threads)$|past the cache|cold load"
    assert [row for row in skipped if not re.search(wanting, row)] == []
    assert rows["SHA-256, the driver API"] == rows["EBUSY where leased"] == "ok"
    assert rows["several devices"] == "ok"
    counters = simulation.counters()
    assert counters["freed_while_imported"] == counters["freed_while_copying"] == 0
    assert simulation.used_bytes() == 0
    assert [path.name for path in tmp_path.iterdir()] == ["simulation"]


def test_without_a_gpu_the_status_is_77(simulation, tmp_path):
    status, rows = run(simulation, tmp_path, SIMULATED_CUDA="")
    assert status == 77
    assert rows[GROUP] == "skipped"


def test_what_fails_is_a_row_and_the_status_1(simulation, tmp_path):
    simulation.configure(fail_call="cuIpcOpenMemHandle_v2:1")
    status, rows = run(simulation, tmp_path, "--only", GROUP)
    assert status == 1
    assert rows["SHA-256, the driver API"] == "FAILED"
    assert rows["EBUSY where leased"] == "ok"

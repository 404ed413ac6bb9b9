"""safetensorfsctl with a GPU, whose copies are slow enough to be watched."""

import os
import re
import signal

import pytest

from expected import TOOL, ctl, on_terminal, signal_during_load, write_holes
from safetensorfs import Mount

NBYTES = 64 << 20


@pytest.fixture
def slow(folder, gpu_mounting, simulation):
    mounted = gpu_mounting(write_holes(folder / "m.safetensors", NBYTES))
    simulation.configure(copy_bytes_per_second=NBYTES)
    return mounted


def test_a_terminal_sees_a_bar_and_then_the_report(slow):
    status, shown = on_terminal("load", slow.path, "cuda:0", "*")
    assert status == 0
    shares = [
        int(share)
        for share in re.findall(
            r"\rload cuda:0 \[#*\.*\] +(\d+)% [\d.]+ of 67\.1 MB, [\d.]+ GB/s\x1b\[K", shown
        )
    ]
    assert shares == sorted(shares) and any(0 < share < 100 for share in shares)
    report = shown.rpartition("\r\x1b[K")[2]
    assert report.startswith("load cuda:0: 1 tensor, 67,108,864 bytes loaded in ")


def test_ctrl_c_cancels_and_frees(slow, simulation):
    command = (*TOOL, "load", slow.path, "cuda:0", "*")
    status, output, complaint = signal_during_load(slow, command, signal.SIGINT, "cuda:0")
    assert (status, output) == (130, "")
    assert complaint.splitlines()[-1] == "safetensorfsctl: cancelled"
    simulation.wait_for(lambda s: s.allocated_bytes() == 0)
    assert Mount(slow).devices()["cuda:0"]["held_nbytes"] == 0


def test_several_devices_status_verify_and_unload(folder, gpu_mounting):
    mounted = gpu_mounting(write_holes(folder / "m.safetensors", 1000))
    result = ctl("load", mounted, "cuda:0,cuda:1", "*")
    assert (result.returncode, len(result.stdout.splitlines())) == (0, 2)
    for device in "cuda:0", "cuda:1":
        lines = ctl("status", mounted).stdout.splitlines()
        assert f"{device}: 1 tensors, 1,000 bytes loaded, 2,097,152 held, 0 leases" in lines
        assert ctl("verify", mounted, device).returncode == 0
        assert ctl("unload", mounted, device, "*").stdout.startswith(f"unload {device}: 1 tensor")
    assert os.listdir(mounted / ".devices/cuda:0/data") == []


def test_a_failure_is_the_daemons_sentence(folder, gpu_mounting, simulation):
    mounted = gpu_mounting(write_holes(folder / "m.safetensors", 1000))
    simulation.configure(oom_at=1)
    result = ctl("load", mounted, "cuda:0", "*")
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("safetensorfsctl: load cuda:0: needs 2,097,152 bytes")

"""safetensorfsctl says what happened, on a terminal, on a pipe, and in its exit status."""

import json
import os
import re
import signal
import subprocess
import time

import pytest

from checkpoints import tensor, write
from daemon import DEADLINE
from expected import TOOL, ctl, environment, on_terminal, signal_during_load, write_holes

@pytest.fixture
def model(folder, mounting):
    checkpoint = write(folder / "m.safetensors", [tensor(f"h.{i}", "F32", (4,)) for i in range(9)])
    return mounting(checkpoint.path)


def loaded(mounted):
    return sorted(os.listdir(mounted / ".devices/cpu/data"))


def test_help_tells_how_to_use_it():
    result = ctl("--help")
    assert result.returncode == 0
    for example in "load /mnt/model cpu 'h.*'", "verify /mnt/model", "status /mnt/model", "unload":
        assert example in result.stdout
    for verb in "load", "unload", "verify", "status":
        assert ctl(verb, "--help").returncode == 0


@pytest.mark.parametrize("words", [(), ("load",), ("load", "/m", "cpu"), ("mount", "/m")])
def test_wrong_usage_is_status_2(words):
    result = ctl(*words)
    assert result.returncode == 2 and result.stderr.startswith("usage: safetensorfsctl")


def test_a_folder_that_is_no_mount(folder):
    for words in ("load", folder, "cpu", "*"), ("status", folder):
        result = ctl(*words)
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr == (
            f"safetensorfsctl: {folder}: has no .index.json, so it is not a safetensorfs mount; "
            "is it mounted?\n"
        )


def test_status_of_a_mount(folder, mounting):
    path = write(folder / "m.safetensors", [tensor("a")]).path
    mounted = mounting(path)
    result = ctl("status", mounted)
    assert result.returncode == 0 and result.stdout.startswith(f"source {path}\n")
    assert json.loads(ctl("status", "--json", mounted).stdout)["source"] == str(path)
    write(folder / "new", [tensor("b")])
    os.replace(folder / "new", path)
    lines = ctl("status", mounted).stdout.splitlines()
    assert f"source {path}: replaced" in lines
    assert lines[-1].startswith(f"warning: {path}: replaced")


def test_output_whose_reader_has_gone_is_no_traceback(folder, mounting):
    mounted = mounting(write(folder / "m.safetensors", [tensor("a")]).path)
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        [*TOOL, "status", mounted.path], stdout=writer, stderr=subprocess.PIPE, env=environment()
    )
    os.close(writer)
    assert (result.returncode, result.stderr) == (1, b"")


def test_load_verify_status_and_unload(model):
    result = ctl("load", model, "cpu", "h.[0-4]")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("load") and "\r" not in result.stdout
    assert loaded(model) == [f"h.{i}" for i in range(5)]
    assert ctl("verify", model, "cpu").stdout.startswith("verify")
    assert re.search(r"^cpu: 5 tensors, 80 bytes loaded", ctl("status", model).stdout, re.MULTILINE)
    assert ctl("unload", model, "cpu", "h.[0-3]", "h.4").stdout.startswith("unload")
    assert loaded(model) == []


def test_quiet_says_nothing(model):
    for words in ("load", "-q", model, "cpu", "*"), ("unload", "-q", model, "cpu", "*"):
        result = ctl(*words)
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_failure_is_status_1_and_the_daemons_sentence(model):
    result = ctl("load", model, "cpu", "h.*", "nothing")
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("safetensorfsctl: ") and "nothing" in line
    assert loaded(model) == []


def test_a_terminal_sees_a_bar_and_then_the_report(folder, mounting):
    mounted = mounting(write_holes(folder / "m.safetensors", 512 << 20))
    status, shown = on_terminal("load", mounted.path, "cpu", "*")
    assert status == 0
    assert re.search(r"\rload cpu \[#*\.*\] +\d+% [\d.]+ of 536\.9 MB, [\d.]+ GB/s\x1b\[K", shown)
    assert shown.rpartition("\r\x1b[K")[2].startswith("load")


def test_a_terminal_sees_a_failure_as_a_sentence(model):
    status, shown = on_terminal("load", model.path, "cpu", "nothing")
    assert status == 1
    assert shown.startswith("safetensorfsctl: ") and shown.count("\n") == 1


def test_ctrl_c_cancels_with_status_130(folder, mounting):
    mounted = mounting(write_holes(folder / "m.safetensors", 512 << 20))
    command = (*TOOL, "load", mounted.path, "cpu", "*")
    status, output, complaint = signal_during_load(mounted, command, signal.SIGINT)
    assert (status, output) == (130, "")
    assert complaint.splitlines()[-1] == "safetensorfsctl: cancelled"


def test_ctrl_c_while_the_daemon_is_silent_is_status_130(folder):
    # A FIFO that is full stands for it.
    (folder / ".index.json").write_text("{}")
    os.mkfifo(folder / ".control")
    descriptor = os.open(folder / ".control", os.O_RDWR | os.O_NONBLOCK)
    try:
        while True:
            try:
                os.write(descriptor, b"x" * 4096)
            except BlockingIOError:
                break
        child = subprocess.Popen(
            [*TOOL, "load", "-q", folder, "cpu", "*"], stderr=subprocess.PIPE, env=environment()
        )
        wait_until_blocked(child.pid)
        child.send_signal(signal.SIGINT)
        _, complaint = child.communicate(timeout=DEADLINE)
    finally:
        os.close(descriptor)
    assert (child.returncode, complaint) == (130, b"safetensorfsctl: cancelled\n")


def wait_until_blocked(pid):
    """Until a process waits in write(2), or in what the pipe calls it."""
    for _ in range(1000):
        with open(f"/proc/{pid}/wchan") as file:
            if "pipe" in file.read():
                return
        time.sleep(0.01)
    pytest.fail("it does not wait")

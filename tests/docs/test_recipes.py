"""Runs the README's recipes and its first screen as they stand."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from commands import BINARY, REPOSITORY

RECIPES = re.findall(
    r"<!-- (tested[^>]*) -->\n```sh\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL
)
LIBRARY = os.environ.get("SIMULATED_CUDA_LIBRARY")


@pytest.fixture
def simulation_folder():
    """Of two devices, for workers of every user."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        Path(folder, "config").write_text("devices=2\n")
        yield folder


@pytest.mark.skipif(os.geteuid() != 0, reason="umount is root's")
@pytest.mark.parametrize("where, recipe", RECIPES, ids=[text.splitlines()[0] for _, text in RECIPES])
def test_a_recipe_runs_to_its_end(where, recipe, tmp_path, simulation_folder):
    if where == "tested on gpus" and LIBRARY is None:
        pytest.skip("built without cuda devices")
    from safetensors.numpy import save_file
    import numpy as np

    names = ["wte.weight", *(f"h.{i}.ln_1.weight" for i in range(12))]
    save_file({name: np.ones((64, 64), "f4") for name in names}, tmp_path / "model.safetensors")
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    environment = os.environ | {
        "MODEL": str(tmp_path / "model.safetensors"),
        "MNT": str(mountpoint),
        "PATH": ":".join([os.path.dirname(BINARY), os.path.dirname(sys.executable), os.environ["PATH"]]),
        "SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_UID": "65534", "SLURM_JOB_GPUS": "0,1",
    }  # fmt: skip
    if where == "tested on gpus":
        environment |= {"SIMULATED_CUDA": simulation_folder, "LD_LIBRARY_PATH": LIBRARY}
    try:
        result = subprocess.run(
            [shutil.which("bash"), "-e", "-c", recipe],
            env=environment, capture_output=True, text=True, timeout=180,
        )
        assert result.returncode == 0, (result.stdout, result.stderr)
        assert not os.path.ismount(mountpoint)
    finally:
        while os.path.ismount(mountpoint):
            subprocess.run(["umount", "-l", mountpoint], check=True)


def test_there_are_recipes():
    assert len(RECIPES) >= 3


def first_screen():
    """Pairs of a command and what it printed."""
    readme = (REPOSITORY / "README.md").read_text()
    block = re.search(r"```console\n(.*?)```", readme, re.DOTALL)[1]
    for part in block.removeprefix("$ ").split("\n$ "):
        command, _, output = part.partition("\n")
        yield command, output


def comparable(command, output, folder):
    output = re.sub(r"[0-9.]+ s, [0-9.]+ GB/s", "TIME", output).replace(str(folder), "/models")
    # On a terminal ls makes columns.
    return sorted(output.split()) if command.startswith("ls") else output.strip("\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="umount is root's")
def test_the_first_screen_of_the_readme_is_what_happens(tmp_path):
    subprocess.run(
        [sys.executable, REPOSITORY / "scripts/make_sample.py", tmp_path / "model.safetensors"],
        check=True,
    )
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    path = [os.path.dirname(BINARY), os.path.dirname(sys.executable), os.environ["PATH"]]
    try:
        for command, expected in first_screen():
            result = subprocess.run(
                ["bash", "-c", command], cwd=tmp_path, env=os.environ | {"PATH": ":".join(path)},
                capture_output=True, text=True, timeout=180,
            )
            assert result.returncode == 0, (command, result.stderr)
            assert comparable(command, result.stdout, tmp_path) == comparable(
                command, expected, tmp_path
            ), command
    finally:
        while os.path.ismount(mountpoint):
            subprocess.run(["umount", "-l", mountpoint], check=True)

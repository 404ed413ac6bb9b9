"""Runs the README's recipes and its first screen as they stand."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from commands import BINARY, REPOSITORY

RECIPES = re.findall(
    r"<!-- tested -->\n```sh\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL
)


@pytest.mark.skipif(os.geteuid() != 0, reason="umount is root's")
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.splitlines()[0])
def test_a_recipe_runs_to_its_end(recipe, tmp_path):
    from safetensors.numpy import save_file
    import numpy as np

    names = ["wte.weight", *(f"h.{i}.ln_1.weight" for i in range(12))]
    save_file({name: np.ones((64, 64), "f4") for name in names}, tmp_path / "model.safetensors")
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    environment = os.environ | {
        "MODEL": str(tmp_path / "model.safetensors"),
        "MNT": str(mountpoint),
        "PATH": os.path.dirname(BINARY) + ":" + os.environ["PATH"],
    }
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

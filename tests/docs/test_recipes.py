"""Runs the README's recipes as they stand."""

import os
import re
import shutil
import subprocess

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

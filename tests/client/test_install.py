"""`pip install ./scripts/client` installs the module and the command."""

import ast
import importlib.util
import os
import re
import shutil
import sys

import pytest

import safetensorfs
from daemon import REPOSITORY, output_of
from expected import CLIENT, python


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    # Of a copy, since setuptools builds in the folder that it is given.
    source, target = tmp_path_factory.mktemp("source") / "client", tmp_path_factory.mktemp("target")
    shutil.copytree(CLIENT, source, ignore=shutil.ignore_patterns("__pycache__"))
    # What is at hand is not asked of PyPI again.
    at_hand = importlib.util.find_spec("setuptools") and importlib.util.find_spec("wheel")
    isolation = ["--no-build-isolation"] if at_hand else []
    output_of(
        *python("-m", "pip", "install", "-q", "--no-deps", "--target", target, *isolation, source)
    )
    return target


def test_the_module_is_importable(installed):
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    script = "import safetensorfs; print(safetensorfs.__file__, safetensorfs.__version__)"
    file, version = output_of(*python("-c", script), env=environment, cwd="/").split()
    assert file.startswith(str(installed)) and version == safetensorfs.__version__


def test_the_command_is_on_the_path(installed):
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    text = output_of(installed / "bin/safetensorfsctl", "--help", env=environment, cwd="/")
    assert text.startswith("usage: safetensorfsctl")


def test_every_module_is_installed(installed):
    modules = {path.name for path in (CLIENT / "safetensorfs").glob("*.py")}
    assert modules == {path.name for path in (installed / "safetensorfs").glob("*.py")}


def test_its_version_is_the_daemons():
    text = (REPOSITORY / "CMakeLists.txt").read_text()
    assert re.search(r"project\(safetensorfs VERSION (\S+)", text)[1] == safetensorfs.__version__


def test_it_needs_numpy_only():
    """Nothing else is imported before it is asked for."""
    script = (
        "import sys; import numpy; before = set(sys.modules); import safetensorfs\n"
        "print(*(set(sys.modules) - before))"
    )
    environment = {**os.environ, "PYTHONPATH": str(CLIENT)}
    names = output_of(*python("-c", script), env=environment).split()
    foreign = {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names)
    assert foreign == {"safetensorfs"}


def test_it_is_the_python_of_3_9():
    for path in (CLIENT / "safetensorfs").glob("*.py"):
        ast.parse(path.read_text(), feature_version=(3, 9))

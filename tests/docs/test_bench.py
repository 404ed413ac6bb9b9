"""scripts/bench runs, at sizes where no figure means anything, and makes the README's figures."""

import json
import os
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from commands import BINARY, REPOSITORY

BENCH = REPOSITORY / "scripts/bench"
NEEDS_CUDA = {"attach", "device_load"}

pytestmark = pytest.mark.skipif(
    bool(os.environ.get("SAFETENSORFS_SANITIZED")), reason="sanitizers are not measured"
)


def bench(*words):
    result = subprocess.run([sys.executable, BENCH, *map(str, words)], text=True,
                            capture_output=True, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The output of all benchmarks, and the file that they have written."""
    folder = tmp_path_factory.mktemp("bench")
    output = bench("all", "--quick", "--binary", BINARY, "--dir", folder,
                   "--results", folder / "results.json")
    return output, folder / "results.json"


def series_in(value):
    if isinstance(value, dict):
        if "median" in value:
            yield value
        for item in value.values():
            yield from series_in(item)


def test_all_parts_are_measured_into_one_file(measured):
    results = json.loads(measured[1].read_text())
    parts = results["parts"]
    assert {"read", "peers", "scale", "load_file", "control"} <= set(parts)
    assert set(parts) <= {"read", "peers", "scale", "load_file", "control", *NEEDS_CUDA}
    assert {"safetensorfs", "libfuse", "numpy"} <= set(results["versions"])
    for name, part in parts.items():
        assert {"kernel", "cpu", "cpus"} <= set(part["machine"])
        assert part["rows"] and all(len(row) == len(part["columns"]) for row in part["rows"]), name
        found = list(series_in(part["measurements"]))
        assert found, name
        for series in found:
            assert series["min"] <= series["median"] <= series["max"]


def test_goals_are_printed_with_whether_they_are_reached(measured):
    output, path = measured
    goals = [goal for part in json.loads(path.read_text())["parts"].values()
             for goal in part["goals"]]
    assert len(goals) >= 8
    for goal in goals:
        assert f"{'reached' if goal['reached'] else 'NOT reached'}: {goal['what']}: " in output


def test_what_cannot_be_measured_is_said(measured):
    output, path = measured
    if os.geteuid() != 0:
        assert "skipped: with nothing in the page cache: only root may drop caches" in output
    shown = json.loads(path.read_text())["parts"]["peers"]["measurements"]
    for peer in "squashfuse", "squashfuse_ll", "fuse-zip", "archivemount", "ratarmount":
        assert peer in shown or f"{peer} is left out: " in output


def test_the_readme_s_figures_come_from_that_file(measured, tmp_path):
    readme, chart = tmp_path / "README.md", tmp_path / "figures.svg"
    readme.write_text(
        "before\n<!-- figures: begin -->\nWhat was there.\n<!-- figures: end -->\nafter\n")
    words = "readme", "--results", measured[1], "--readme", readme, "--chart", chart
    bench(*words)
    text = readme.read_text()
    assert text.startswith("before\n<!-- figures: begin -->\n")
    assert text.endswith("<!-- figures: end -->\nafter\n") and "What was there" not in text
    assert "![Speed through a mount as a share of native files](figures.svg)" in text
    for name in "read", "peers", "scale", "load_file", "control":
        assert f"`scripts/bench {name}`" in text
    bench(*words)
    assert readme.read_text() == text
    bars = ElementTree.parse(chart).getroot().iter("{http://www.w3.org/2000/svg}rect")
    assert len(list(bars)) >= 8


def test_a_readme_without_markers_is_left_alone(measured, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("nothing\n")
    result = subprocess.run(
        [sys.executable, BENCH, "readme", "--results", measured[1], "--readme", readme,
         "--chart", tmp_path / "figures.svg"], text=True, capture_output=True, timeout=60)
    assert result.returncode == 1 and "figures: begin" in result.stderr
    assert readme.read_text() == "nothing\n"

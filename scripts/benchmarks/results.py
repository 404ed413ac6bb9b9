"""The file that holds what was measured: a machine, versions, and the report of each part."""

import importlib.metadata
import json
import platform
import subprocess
from pathlib import Path

from . import peers

RESULTS = peers.TOP / "build/bench/results.json"


def _output(*words):
    try:
        result = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    except OSError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def versions(binary):
    found = {"safetensorfs": (_output(binary, "--version") or "").rpartition(" ")[2],
             "Python": platform.python_version(),
             "libfuse": _output("pkg-config", "--modversion", "fuse3")}
    for package in "numpy", "safetensors", "torch":
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass
    return {name: version for name, version in {**found, **peers.versions()}.items() if version}


def save(path, binary, name, part):
    """Adds one part to the file, or puts it in the place of an older one."""
    results = load(path) if path.exists() else {"parts": {}}
    results["versions"] = versions(binary)
    results["parts"][name] = part
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(json.dumps(results, indent=1) + "\n")
    temporary.replace(path)


def load(path):
    return json.loads(Path(path).read_text())

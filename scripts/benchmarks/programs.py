"""Programs that are built when something is to be measured with them."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parent.parent
CLIENT = TOP / "scripts/client"  # the Python package


def build_minimal_server(binary):
    """scripts/benchmarks/minimal_server.cc, built as the program that is measured was."""
    build = binary.parent
    if not (build / "CMakeCache.txt").exists():
        build = TOP / "build/release"
    result = subprocess.run(["cmake", "--build", str(build), "--target", "minimal_server"],
                            capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"bench: minimal_server cannot be built:\n{result.stdout}{result.stderr}")
    return build / "benchmarks/minimal_server"


class Reads:
    """scripts/benchmarks/reads.c: what is timed, without Python's part in it."""

    def __init__(self, folder):
        self._program = folder / "reads"
        subprocess.run(["cc", "-O2", "-pthread", HERE / "reads.c", "-o", self._program], check=True)

    def _run(self, *words, **options):
        return subprocess.run([str(self._program), *map(str, words)], check=True, text=True,
                              stdout=subprocess.PIPE, **options).stdout

    def sequential(self, path, offset, nbytes, block, is_direct=False, readers=1):
        """Seconds; each reader has its part of the bytes."""
        return float(self._run("sequential", path, offset, nbytes, block, int(is_direct), readers))

    def touch(self, path, offset, nbytes):
        """Seconds to map the file and read a byte of each page."""
        return float(self._run("touch", path, offset, nbytes))

    def random(self, path, offset, nbytes, count):
        """Seconds of each read of 4 KiB."""
        return self._seconds(self._run("random", path, offset, nbytes, count))

    def open(self, path, count):
        """Seconds of each open and close."""
        return self._seconds(self._run("open", path, count))

    def stat(self, folder, names):
        """Seconds of each stat."""
        return self._seconds(self._run("stat", folder, input="\n".join(names) + "\n"))

    @staticmethod
    def _seconds(output):
        return [int(line) / 1e9 for line in output.split()]

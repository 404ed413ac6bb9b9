"""A mount that finds a simulated GPU (tests/simulated_cuda), and commands to it."""

import os
import sys
import time

DEVICE = "cuda:0"


class Simulation:
    """The environment of programs that are to find a simulated driver with one device."""

    def __init__(self, binary, folder):
        library = binary.parent / "simulated_cuda"
        if not (library / "libcuda.so.1").exists():
            sys.exit(f"bench: {library}/libcuda.so.1: not built (cmake --build --preset release "
                     "--target simulated_cuda)")
        folder.mkdir()
        folder.joinpath("config").write_text("devices=1\nmemory=68719476736\ncopy_delay_us=0\nreuse=1\n")
        self.environment = {**os.environ, "LD_LIBRARY_PATH": str(library),
                            "SIMULATED_CUDA": str(folder)}


def command(mount, text):
    """Seconds until the command is done."""
    descriptor = os.open(mount.mountpoint / ".control", os.O_RDWR)
    try:
        begin = time.perf_counter()
        os.write(descriptor, (text + "\n").encode())
        return time.perf_counter() - begin
    except OSError:
        sys.exit("bench: " + os.read(descriptor, 10_000).decode())
    finally:
        os.close(descriptor)

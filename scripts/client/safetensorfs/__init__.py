"""Arrays on what safetensorfs has mounted, and its commands.

    import safetensorfs

    tensors = safetensorfs.load_file("/mnt/model")          # {name: NumPy array}, no copies
    with safetensorfs.Mount("/mnt/model") as mount:
        print(mount.load("cpu", "h.*"))                     # returns when it is in memory
        weight = mount.attach("cpu", "h.0.ln_1.weight")     # leased until it dies

    tensors = safetensorfs.load_file("/mnt/model", "cuda:0")    # {name: torch.Tensor}, no copies

Needs NumPy only; PyTorch or CuPy where they are asked for. On the command line: safetensorfsctl.
"""

from .errors import CommandError, MountError
from .index import TensorInfo
from .load import load_file
from .mount import Mount

__all__ = ["CommandError", "Mount", "MountError", "TensorInfo", "load_file"]
__version__ = "0.1.0"

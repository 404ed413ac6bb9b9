"""Loads a model as one does without safetensorfs, in a process of its own.

    compare.py WAY FILE DEVICE     load_file or torch_load; torch_load makes FILE.pt first

A line of JSON: {"seconds": of each call after the first, "first_seconds"}, or {"skipped": reason}.
"""

import json
import os
import sys
import time


def measure(way, path, device):
    try:
        import torch
        from safetensors.torch import load_file
    except ImportError as error:
        return {"skipped": f"no module {error.name}"}
    if not torch.cuda.is_available():
        return {"skipped": "PyTorch sees no GPU"}
    torch.zeros(1, device=device)
    if way == "torch_load":
        pickled = path + ".pt"
        torch.save(load_file(path), pickled)

        def load():
            return torch.load(pickled, map_location=device)
    else:

        def load():
            return load_file(path, device=device)

    seconds = []
    for _ in range(4):
        begin = time.perf_counter()
        tensors = load()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
        del tensors
        # So that the next call allocates, as the first did.
        torch.cuda.empty_cache()
    if way == "torch_load":
        os.unlink(pickled)
    return {"first_seconds": seconds[0], "seconds": seconds[1:]}


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:])))

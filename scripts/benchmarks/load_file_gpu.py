"""The half of load_file that needs a GPU which PyTorch sees."""

import time

from .rounds import interleave

DEVICE = "cuda:0"
OURS = f"load_file(mount, device=\"{DEVICE}\")"
THEIRS = f"safetensors.torch.load_file(device=\"{DEVICE}\")"
PICKLE = f"torch.load(map_location=\"{DEVICE}\")"


def why_not(mount):
    """Empty where there is a GPU to measure with."""
    import torch
    if not torch.cuda.is_available():
        return "no GPU"
    if not (mount.mountpoint / ".devices" / DEVICE).exists():
        return f"safetensorfs finds no {DEVICE}"
    return ""


def seconds_of(load):
    import torch
    begin = time.perf_counter()
    tensors = load()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    del tensors
    torch.cuda.empty_cache()  # so that the next call allocates, as the first did
    return seconds


def measure(mount, source, pickled, rounds):
    """{call: Series of seconds}: attaching to what the daemon holds, and loading as others do."""
    import torch
    from safetensors.torch import load_file

    import safetensorfs

    client = safetensorfs.Mount(mount.mountpoint)

    def load_and_attach():
        client.unload(DEVICE, "*")
        return seconds_of(lambda: safetensorfs.load_file(mount.mountpoint, device=DEVICE))

    torch.zeros(1, device=DEVICE)
    client.load(DEVICE, "*")
    ways = {
        f"{OURS}, loaded by the daemon before":
            lambda: seconds_of(lambda: safetensorfs.load_file(mount.mountpoint, device=DEVICE)),
        f"{OURS}, which loads it": load_and_attach,
        THEIRS: lambda: seconds_of(lambda: load_file(source, device=DEVICE)),
        PICKLE: lambda: seconds_of(lambda: torch.load(pickled, map_location=DEVICE)),
    }
    for way in ways.values():
        way()
    series = interleave({"gpu": ways}, rounds)["gpu"]
    client.unload(DEVICE, "*")
    client.close()
    return series

"""The model that files are read from: GPT-2 as it is published, 160 tensors, 548 MB."""

import math

from .load_file import shapes

LARGEST = "wte.weight"  # 154 MB


def gpt2_sizes(megabytes):
    """{name: bytes} of its tensors, each in proportion where they are to be fewer MB."""
    whole = {name: 4 * math.prod(shape) for name, shape in shapes(12)}
    share = min(1.0, megabytes * 1e6 / sum(whole.values()))
    return {name: max(4, int(nbytes * share) // 4 * 4) for name, nbytes in whole.items()}

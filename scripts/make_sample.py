#!/usr/bin/env python3
"""Writes a small model, shaped like a two-layer GPT, with tensors of many dtypes.

    make_sample.py FILE
"""

import sys

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

VOCABULARY, CONTEXT, WIDTH, LAYERS = 8192, 512, 128, 2


def sample_tensors():
    random = np.random.default_rng(1)

    def normal(dtype, *shape):
        return random.standard_normal(shape, np.float32).astype(dtype)

    tensors = {
        "wte.weight": normal(np.float32, VOCABULARY, WIDTH),
        "wpe.weight": normal(np.float16, CONTEXT, WIDTH),
        "ln_f.weight": np.ones(WIDTH, np.float32),
        "position_ids": np.arange(CONTEXT, dtype=np.int64),
        "causal_mask": np.tri(64, dtype=np.bool_),
        "training.step": np.array(120000, np.int64),
        "training.empty": np.zeros((0, WIDTH), np.float32),
        "rotary": np.exp(1j * np.arange(64, dtype=np.float32)).astype(np.complex64),
    }
    for layer in range(LAYERS):
        tensors |= {
            f"h.{layer}.ln_1.weight": np.ones(WIDTH, np.float32),
            f"h.{layer}.attn.c_attn.weight": normal(ml_dtypes.bfloat16, WIDTH, 3 * WIDTH),
            f"h.{layer}.attn.c_attn.bias": normal(ml_dtypes.bfloat16, 3 * WIDTH),
            f"h.{layer}.mlp.c_fc.weight": normal(ml_dtypes.float8_e4m3fn, WIDTH, 4 * WIDTH),
            f"h.{layer}.mlp.c_fc.scale": normal(np.float32, WIDTH, 1),
            f"h.{layer}.mlp.c_proj.weight": random.integers(-128, 128, (4 * WIDTH, WIDTH), np.int8),
        }
    return tensors


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: make_sample.py FILE")
    metadata = {"format": "np", "description": "a sample of many dtypes; the numbers are random"}
    save_file(sample_tensors(), sys.argv[1], metadata)


if __name__ == "__main__":
    main()

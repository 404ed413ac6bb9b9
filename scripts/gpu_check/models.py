"""Safetensors files to load, made with Python alone. Their bytes differ from place to place."""

import hashlib
import json
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

# Bits of an element.
DTYPES = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
MEBIBYTE = 1 << 20


@dataclass
class Model:
    path: Path
    nbytes: int  # of the tensors
    count: int
    digests: dict = field(default_factory=dict)  # {name: SHA-256 in hexadecimal}


class Bytes:
    """Endless bytes: a random block, begun elsewhere each time."""

    def __init__(self):
        self._block = memoryview(os.urandom(8 * MEBIBYTE) * 2)
        self._turn = 0

    def blocks(self, nbytes):
        half = len(self._block) // 2
        while nbytes > 0:
            self._turn += 1
            begin = self._turn * 104729 % half
            block = self._block[begin : begin + min(nbytes, half)]
            yield block
            nbytes -= len(block)


def write(path, tensors, with_digests=False):
    """tensors: (name, dtype, shape), in the file's order."""
    header, end = {}, 0
    for name, dtype, shape in tensors:
        elements = 1
        for dimension in shape:
            elements *= dimension
        nbytes = elements * DTYPES[dtype] // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + nbytes]}
        end += nbytes
    model = Model(Path(path), end, len(header))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    source = Bytes()
    with open(path, "wb", buffering=16 * MEBIBYTE) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        if with_digests:
            for name, entry in header.items():
                begin, stop = entry["data_offsets"]
                data = b"".join(source.blocks(stop - begin))
                if entry["dtype"] == "BOOL":
                    data = bytes(byte & 1 for byte in data)
                model.digests[name] = hashlib.sha256(data).hexdigest()
                file.write(data)
        else:
            for block in source.blocks(end):
                file.write(block)
        # What has not been written back yet cannot be dropped from the cache.
        file.flush()
        os.fsync(file.fileno())
    return model


def write_large(path, nbytes):
    """Layers of ten tensors, about 200 MB each, behind an embedding of a fifth of the file."""
    width, layer = 4096, 200_000_000
    layers = max(1, round(nbytes * 0.8 / layer))
    layer = int(nbytes * 0.8 / layers)
    rows = max(1, layer // 8 // width // 2)
    tensors = [
        ("model.embed_tokens.weight", "BF16", [max(1, int(nbytes * 0.2) // width // 2), width])
    ]
    for number in range(layers):
        prefix = f"model.layers.{number}"
        tensors += [(f"{prefix}.{norm}.weight", "BF16", [width]) for norm in ("norm_1", "norm_2")]
        tensors += [(f"{prefix}.part_{part}.weight", "BF16", [rows, width]) for part in range(8)]
    return write(path, tensors)


def write_gpt2(path, layers=12, width=768, context=1024, vocabulary=50257):
    """160 tensors of F32, 548 MB, as GPT-2 has them."""
    tensors = [("wte.weight", "F32", [vocabulary, width]), ("wpe.weight", "F32", [context, width])]
    for number in range(layers):
        tensors += [
            (f"h.{number}.{name}", "F32", shape)
            for name, shape in (
                ("ln_1.weight", [width]),
                ("ln_1.bias", [width]),
                ("attn.bias", [1, 1, context, context]),
                ("attn.c_attn.weight", [width, 3 * width]),
                ("attn.c_attn.bias", [3 * width]),
                ("attn.c_proj.weight", [width, width]),
                ("attn.c_proj.bias", [width]),
                ("ln_2.weight", [width]),
                ("ln_2.bias", [width]),
                ("mlp.c_fc.weight", [width, 4 * width]),
                ("mlp.c_fc.bias", [4 * width]),
                ("mlp.c_proj.weight", [4 * width, width]),
                ("mlp.c_proj.bias", [width]),
            )
        ]
    tensors += [("ln_f.weight", "F32", [width]), ("ln_f.bias", "F32", [width])]
    return write(path, tensors)


def write_small(path, count):
    """Many tensors of 4 KiB."""
    return write(
        path, [(f"model.experts.{number}.scale", "F32", [1024]) for number in range(count)]
    )


def write_dtypes(path):
    """Two tensors of every dtype, a scalar, an empty one, and one larger than a staging slot."""
    tensors = []
    for dtype in DTYPES:
        tensors += [(f"{dtype}.small", dtype, [3, 8]), (f"{dtype}.large", dtype, [129, 1024])]
    tensors += [("scalar", "F64", []), ("empty", "F32", [0, 5]), ("slots", "U8", [9_000_001])]
    return write(path, tensors, with_digests=True)

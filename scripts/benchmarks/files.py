"""Safetensors files to measure with. Data are holes in the file, or random bytes."""

import json
import os
import struct

import numpy as np


# More would need a header over the format's 100 MB with names and sizes as models have them.
LONGEST_NAMED = 800_000


def tensor_names(count):
    """Names of a mixture of experts: 776 tensors in a layer, as many layers as it takes.

    Above LONGEST_NAMED tensors short names.
    """
    def endless():
        layer = 0
        while True:
            prefix = f"model.layers.{layer}"
            for norm in "input_layernorm", "post_attention_layernorm":
                yield f"{prefix}.{norm}.weight"
            for projection in "q", "k", "v", "o":
                yield f"{prefix}.self_attn.{projection}_proj.weight"
            yield f"{prefix}.mlp.gate.weight"
            yield f"{prefix}.mlp.gate.e_score_correction_bias"
            for expert in range(256):
                for projection in "gate", "up", "down":
                    yield f"{prefix}.mlp.experts.{expert}.{projection}_proj.weight"
            layer += 1

    if count > LONGEST_NAMED:
        return (f"w.{number}" for number in range(count))
    names = endless()
    return (next(names) for _ in range(count))


def write_many_tensors(path, count):
    """COUNT tensors of BF16 [8,8], or of a byte above LONGEST_NAMED, over a hole.

    Returns the header's length in bytes.
    """
    dtype, shape, nbytes = ("U8", "[1]", 1) if count > LONGEST_NAMED else ("BF16", "[8,8]", 128)
    header = "{" + ",".join(
        f'"{name}":{{"dtype":"{dtype}","shape":{shape},'
        f'"data_offsets":[{i * nbytes},{(i + 1) * nbytes}]}}'
        for i, name in enumerate(tensor_names(count))) + "}"
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header.encode())
        file.truncate(8 + len(header) + count * nbytes)
    return len(header)


def write_holes(path, sizes):
    """Tensors of U8, {name: bytes}, over a hole. Returns the offset of the last one."""
    entries, end = {}, 0
    for name, nbytes in sizes.items():
        entries[name] = {"dtype": "U8", "shape": [nbytes], "data_offsets": [end, end + nbytes]}
        end += nbytes
    header = json.dumps(entries).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + end)
    return 8 + len(header) + end - nbytes


def pad_header(header):
    """Spaces up to a multiple of 8 bytes, as the reference implementation writes it."""
    return header + b" " * (-len(header) % 8)


def write_random(path, sizes):
    """Tensors of U8, {name: bytes}, of random bytes. Returns where they begin, and their bytes."""
    entries, end = {}, 0
    for name, nbytes in sizes.items():
        entries[name] = {"dtype": "U8", "shape": [nbytes], "data_offsets": [end, end + nbytes]}
        end += nbytes
    header = pad_header(json.dumps(entries).encode())
    block = np.random.default_rng(1).bytes(64 << 20)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for at in range(0, end, len(block)):
            file.write(block[:end - at])
        file.flush()
        os.fsync(file.fileno())
    return 8 + len(header), end


def offsets(path):
    """{name: (offset in the file, bytes)} of a safetensors file."""
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    spans = {name: entry["data_offsets"] for name, entry in header.items()}
    return {name: (8 + length + begin, end - begin) for name, (begin, end) in spans.items()}


def extract(path, folder):
    """Each tensor's bytes as a file of its name, on the disk."""
    folder.mkdir()
    with open(path, "rb") as source:
        for name, (offset, nbytes) in offsets(path).items():
            with open(folder / name, "wb") as file:
                while nbytes > 0:
                    sent = os.sendfile(file.fileno(), source.fileno(), offset, nbytes)
                    offset, nbytes = offset + sent, nbytes - sent
    os.sync()

"""Writes safetensors files byte by byte, so that tests can have the ones libraries refuse to write."""

import dataclasses
import json
import math
import os
import random
import re
import struct
from pathlib import Path

DTYPE_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "BOOL": 8, "U8": 8, "I8": 8,
    "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Tensor:
    name: str
    dtype: str
    shape: tuple
    data: bytes


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    path: Path
    tensors: list
    offsets: dict  # tensor name -> its first byte, counted from the start of the file

    def __iter__(self):
        return iter(self.tensors)

    def __getitem__(self, name):
        return next(t for t in self.tensors if t.name == name)


def nbytes(dtype, shape):
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    assert bits % 8 == 0
    return bits // 8


def tensor(name, dtype="U8", shape=(16,), seed=0):
    size = nbytes(dtype, shape)
    data = random.Random(f"{seed} {name!r}").randbytes(size)
    if dtype == "BOOL":
        data = bytes(byte & 1 for byte in data)
    return Tensor(name, dtype, tuple(shape), data)


def blob(name, data):
    return Tensor(name, "U8", (len(data),), data)


def frame(header, data=b""):
    """One file around a header that may be anything at all."""
    header = header if isinstance(header, bytes) else header.encode()
    return struct.pack("<Q", len(header)) + header + data


def entry(tensor_, begin):
    return {
        "dtype": tensor_.dtype,
        "shape": list(tensor_.shape),
        "data_offsets": [begin, begin + len(tensor_.data)],
    }


def encode(tensors, metadata=None, residue=0):
    """The file, its header padded so that the data starts at residue modulo 8."""
    fields = {} if metadata is None else {"__metadata__": metadata}
    begin, begins = 0, {}
    for t in tensors:
        fields[t.name] = entry(t, begin)
        begins[t.name] = begin
        begin += len(t.data)
    header = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * ((residue - len(header)) % 8)
    offsets = {name: 8 + len(header) + begin for name, begin in begins.items()}
    return frame(header, b"".join(t.data for t in tensors)), offsets


def write(path, tensors, metadata=None, residue=0):
    tensors = list(tensors)
    data, offsets = encode(tensors, metadata, residue)
    path = Path(path)
    path.write_bytes(data)
    return Checkpoint(path, tensors, offsets)


def every_dtype(residue=0):
    """A matrix, an odd row, an empty tensor and (where whole bytes allow) a scalar of each dtype."""
    for dtype, bits in DTYPE_BITS.items():
        yield tensor(f"{dtype}.matrix", dtype, (3, 8), residue)
        yield tensor(f"{dtype}.row", dtype, (8 if bits < 8 else 5,), residue)
        yield tensor(f"{dtype}.empty", dtype, (0, 4))
        if bits >= 8:
            yield tensor(f"{dtype}.scalar", dtype, (), residue)


def write_sharded(folder, shards, stem="model", extra_map=None, metadata=None):
    """Shards and their index; extra_map adds to (or overrides) the index's weight_map."""
    folder, weight_map, written = Path(folder), {}, []
    for number, tensors in enumerate(shards, 1):
        file = f"{stem}-{number:05}-of-{len(shards):05}.safetensors"
        written.append(write(folder / file, tensors, {"format": "pt"}, residue=number))
        weight_map.update({t.name: file for t in written[-1]})
    weight_map.update(extra_map or {})
    total = sum(len(t.data) for checkpoint in written for t in checkpoint)
    index = folder / f"{stem}.safetensors.index.json"
    index.write_text(
        json.dumps({"metadata": metadata or {"total_size": total}, "weight_map": weight_map})
    )
    return index, written


def write_cache(root, files, name="models--acme--tiny", revision="0" * 39 + "1"):
    """A Hugging Face cache folder of {file name: bytes}: snapshots are links into blobs."""
    model = Path(root) / name
    snapshot = model / "snapshots" / revision
    for folder in (model / "blobs", model / "refs", snapshot):
        folder.mkdir(parents=True)
    (model / "refs" / "main").write_text(revision)
    for number, (file, data) in enumerate(files.items()):
        (model / "blobs" / f"{number:040x}").write_bytes(data)
        (snapshot / file).symlink_to(f"../../blobs/{number:040x}")
    return model, snapshot


NAME_LIMIT = 250
_LONG = re.compile(rb"(?P<kept>.*)%~[0-9A-Fa-f]{16}", re.DOTALL)


def _pieces(name):
    for position, character in enumerate(name):
        special = character in "/\0%" or (character == "." and position == 0)
        yield b"%%%02X" % ord(character) if special else character.encode()


def file_name(name):
    """The file name of a short tensor name, as bytes; None where it is cut and hashed."""
    escaped = b"".join(_pieces(name)) or b"%empty"
    return escaped if len(escaped) <= NAME_LIMIT else None


def is_file_name(candidate, name):
    """Whether candidate is how name must be spelled, the hash of long names left open."""
    if file_name(name) is not None:
        return candidate == file_name(name)
    match = _LONG.fullmatch(candidate)
    if not match or len(candidate) > NAME_LIMIT:
        return False
    kept, length, ends = match["kept"], 0, set()
    for piece in _pieces(name):
        length += len(piece)
        ends.add(length)
    return (
        len(kept) in ends
        and b"".join(_pieces(name)).startswith(kept)
        and 190 <= len(kept) <= NAME_LIMIT - 18
    )


def path_of(mounted, name):
    """Where a tensor is in a mount, found by its spelling or, for long names, by its xattr."""
    root = os.fsencode(mounted)
    short = file_name(name)
    if short is not None:
        return os.path.join(root, short)
    for candidate in os.listdir(root):
        path = os.path.join(root, candidate)
        if is_file_name(candidate, name) and (
            os.getxattr(path, "user.safetensors.name") == name.encode()
        ):
            return path
    raise FileNotFoundError(name)

"""Compares verdicts on generated and mutated safetensors files with those of the reference.

usage: HEADER_VERDICTS=PROGRAM differential.py [--cases N] [--seed S] [--reference-only]

PROGRAM reads records (u64 little-endian length, then that many bytes) from stdin and answers each
with one line: `ok`, or `<Term>: message`. Two differences are deliberate, and both are looked for in
the JSON itself: a tensor name given twice, and an entry as an array or a dtype as an object. Those are
refused where the reference accepts them; every other difference fails.
"""

import argparse
import collections
import itertools
import json
import os
import struct
import subprocess
import sys

import safetensors

import generator

TERMS = {
    "header too small": "HeaderTooSmall",
    "header too large": "HeaderTooLarge",
    "invalid header length": "InvalidHeaderLength",
    "invalid UTF-8 in header": "InvalidHeader",
    "invalid JSON in header": "InvalidHeaderDeserialization",
    "invalid offset for tensor": "InvalidOffset",
    "invalid shape, data type, or offset": "TensorInvalidInfo",
    "overflow computing buffer size": "ValidationOverflow",
    "The slice is slicing for subbytes": "MisalignedSlice",
    "incomplete metadata, file not fully covered": "MetadataIncompleteBuffer",
}


def reference_verdict(file):
    try:
        safetensors.deserialize(file)
    except safetensors.SafetensorError as error:
        message = str(error).removeprefix("Error while deserializing: ")
        return next((term for text, term in TERMS.items() if message.startswith(text)), message)
    return "ok"


def tensor_members(file):
    """[(name, entry)] of the header, objects as lists of pairs; None where it is not read as JSON."""
    length = int.from_bytes(file[:8], "little")
    try:
        # Numbers stay text: Python refuses to convert very long ones.
        members = json.loads(
            file[8 : 8 + length], object_pairs_hook=Members, parse_int=str, parse_float=str
        )
    except (ValueError, RecursionError):
        return None
    if not isinstance(members, Members):
        return None
    return [(name, value) for name, value in members if name != "__metadata__"]


class Members(list):
    """The members of one JSON object, in order, repetitions kept."""


def deliberate_difference(file):
    members = tensor_members(file)
    if members is None:
        return None
    if len({name for name, _ in members}) < len(members):
        return "a tensor name given twice"
    for _, entry in members:
        if not isinstance(entry, Members):
            return "an entry as an array" if isinstance(entry, list) else None
        if any(key == "dtype" and isinstance(value, Members) for key, value in entry):
            return "a dtype as an object"
    return None


def ties_of_offsets(file):
    """The reference takes tensors of equal offsets in no fixed order, so its term is one of several."""
    offsets = [
        tuple(value)
        for _, entry in tensor_members(file) or []
        if isinstance(entry, Members)
        for key, value in entry
        if key == "data_offsets" and isinstance(value, list) and all(type(v) is str for v in value)
    ]
    return len(set(offsets)) < len(offsets)


def verdicts_of(program, files):
    records = b"".join(struct.pack("<Q", len(file)) + file for file in files)
    result = subprocess.run([program], input=records, stdout=subprocess.PIPE)
    lines = result.stdout.decode("utf-8", "replace").split("\n")[:-1]
    if result.returncode != 0 or len(lines) != len(files):
        print(f"{program}: status {result.returncode} after {len(lines)} of {len(files)} verdicts")
        if len(lines) < len(files):
            print(f"  next: {files[len(lines)]!r}")
        sys.exit(1)
    return lines


def compare(file, reference, line, deliberate):
    """What is wrong with a verdict, or None."""
    term = line.split(":")[0]
    if reference == "ok" and deliberate:
        return f"accepted, with {deliberate}" if line == "ok" else None
    if (reference == "ok") != (line == "ok"):
        return f"reference {reference}, here {line}"
    if reference != term and not deliberate and not ties_of_offsets(file):
        return f"reference {reference}, here {line} (another term)"
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reference-only", action="store_true", help="ask no PROGRAM")
    options = parser.parse_args()

    files = list(itertools.islice(generator.files(options.seed), options.cases))
    references = [reference_verdict(file) for file in files]
    counts = collections.Counter(references)
    print(f"seed {options.seed}, {len(files)} files; the reference says:")
    for verdict, count in counts.most_common():
        print(f"  {count:7} {verdict}")
    # A generator that has gone stale would compare little and still pass.
    assert counts.keys() == {"ok", *TERMS.values()} or len(files) < 5000, "a verdict never occurred"
    if options.reference_only:
        return 0

    differences, permitted = [], collections.Counter()
    for file, reference, line in zip(
        files, references, verdicts_of(os.environ["HEADER_VERDICTS"], files)
    ):
        deliberate = deliberate_difference(file)
        wrong = compare(file, reference, line, deliberate)
        if wrong:
            differences.append((wrong, file))
        elif reference == "ok" and deliberate:
            permitted[deliberate] += 1
    for difference, count in sorted(permitted.items()):
        print(f"  {count:7} refused here on purpose: {difference}")
    for wrong, file in differences[:20]:
        print(f"DIFFERENT: {wrong}\n  {file!r}")
    print(f"{len(differences)} differences that are not deliberate")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())

"""--check says nothing about good sources and one line about each problem of the others."""

import json
import os

import pytest

from checkpoints import encode, every_dtype, frame, tensor, write, write_cache, write_sharded
from daemon import BINARY, run, safetensorfs

GOOD, _ = encode([tensor("a", "F32", (2, 2))])


def check(source, **options):
    result = safetensorfs("--check", source, **options)
    return result.returncode, result.stdout.splitlines(), result.stderr


def test_good_sources_are_silent(folder):
    write(folder / "m.safetensors", every_dtype(), residue=3)
    (folder / "sharded").mkdir()
    index, _ = write_sharded(folder / "sharded", [[tensor("a")], [tensor("b")]])
    (folder / "none.safetensors").write_bytes(frame("{}"))
    cache = folder / "cache"
    cache.mkdir()
    model, snapshot = write_cache(cache, {"model.safetensors": GOOD})
    for source in (folder / "m.safetensors", folder / "none.safetensors", index, folder,
                   folder / "sharded", model, snapshot, snapshot / "model.safetensors"):  # fmt: skip
        assert check(source) == (0, [], ""), source


def header_of(**fields):
    return {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]} | fields


# term: (header, bytes of data, what else the line must hold)
PROBLEMS = {
    "TensorInvalidInfo": (
        {"a.w": header_of(data_offsets=[0, 12])}, 12,
        ['tensor "a.w"', "data_offsets [0,12) hold 12 bytes", "F32 [2,2] needs 16"],
    ),
    "InvalidOffset": (
        {"a.w": header_of(), "b.w": header_of(data_offsets=[20, 36])}, 36, ['"b.w"', "16", "20"],
    ),
    "ValidationOverflow": (
        {"a.w": header_of(shape=[2, 2**64 - 2])}, 16, ['"a.w"', "18446744073709551614"],
    ),
    "MisalignedSlice": (
        {"a.w": header_of(dtype="F4", shape=[3], data_offsets=[0, 2])}, 2, ['"a.w"', "F4", "[3]"],
    ),
    "MetadataIncompleteBuffer": ({"a.w": header_of()}, 9, ["truncated", "7"]),
    "InvalidHeaderDeserialization": (
        {"a.w": header_of(dtype="F128")}, 16, ['"a.w"', "F128"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("term", PROBLEMS)
def test_a_problem_is_one_line_that_names_file_tensor_rule_and_values(folder, term):
    header, size, parts = PROBLEMS[term]
    path = folder / "model.safetensors"
    path.write_bytes(frame(json.dumps(header), bytes(size)))
    status, lines, errors = check(path)
    assert (status, len(lines), errors) == (31, 1, "")
    for part in [str(path), term, *parts]:
        assert part in lines[0]


def test_a_duplicate_name_is_an_error_that_names_the_tensor(folder):
    once = '"twin":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}'
    path = folder / "model.safetensors"
    path.write_bytes(frame(f"{{{once},{once}}}", b"abcd"))
    status, lines, _ = check(path)
    assert status == 31
    assert '"twin"' in lines[0] and "twice" in lines[0] and str(path) in lines[0]


def test_what_cannot_be_read_is_30(folder):
    status, lines, _ = check(folder / "absent.safetensors")
    assert status == 30
    assert len(lines) == 1 and "absent.safetensors" in lines[0]


def test_missing_and_inconsistent_shards_are_32_and_each_is_a_line(folder):
    index, shards = write_sharded(
        folder,
        [[tensor("a")], [tensor("b")], [tensor("c")]],
        extra_map={"ghost": "model-00001-of-00003.safetensors"},
    )
    shards[1].path.unlink()
    status, lines, _ = check(index)
    assert status == 32
    assert any("ghost" in line and "model-00001-of-00003" in line for line in lines)
    assert any("model-00002-of-00003.safetensors" in line for line in lines)


def test_a_folder_names_every_checkpoint_that_fails(folder):
    (folder / "sub").mkdir()
    write(folder / "good.safetensors", [tensor("a")])
    (folder / "short.safetensors").write_bytes(GOOD[:-1])
    (folder / "sub/page.safetensors").write_bytes(b"<html></html>" * 9)
    (folder / "notes.txt").write_text("no checkpoint")
    status, lines, _ = check(folder)
    assert status == 31
    assert len(lines) == 2
    assert any("short.safetensors" in line and "MetadataIncompleteBuffer" in line for line in lines)
    assert any("sub/page.safetensors" in line and "HTML" in line for line in lines)


def test_the_largest_status_wins(folder):
    (folder / "short.safetensors").write_bytes(GOOD[:-1])
    (folder / "sharded").mkdir()
    _, shards = write_sharded(folder / "sharded", [[tensor("a")], [tensor("b")]])
    shards[0].path.unlink()
    status, lines, _ = check(folder)
    assert status == 32
    assert len(lines) == 2


def test_an_invalid_shard_of_a_folder_is_named_once(folder):
    _, shards = write_sharded(folder, [[tensor("a")], [tensor("b")]])
    shards[1].path.write_bytes(shards[1].path.read_bytes()[:-2])
    status, lines, _ = check(folder)
    assert status == 31
    assert len(lines) == 1 and shards[1].path.name in lines[0]


def test_relative_sources_are_checked_where_the_caller_stands(folder):
    (folder / "m.safetensors").write_bytes(GOOD)
    assert check("m.safetensors", cwd=folder) == (0, [], "")
    assert check(".", cwd=folder) == (0, [], "")
    assert check("other.safetensors", cwd=folder)[0] == 30


def test_check_mounts_nothing(folder):
    (folder / "m.safetensors").write_bytes(GOOD)
    before = open("/proc/self/mountinfo").read()
    assert check(folder / "m.safetensors")[0] == 0
    assert open("/proc/self/mountinfo").read() == before
    assert sorted(os.listdir(folder)) == ["m.safetensors"]


def test_links_that_lead_nowhere_and_what_is_no_file_are_problems(folder):
    write(folder / "good.safetensors", [tensor("a")])
    (folder / "blob.safetensors").symlink_to("no/such/blob")
    os.mkfifo(folder / "pipe.safetensors")
    (folder / "notes.txt").symlink_to("nowhere")
    status, lines, _ = check(folder)
    assert status == 30
    assert [line.split(": ")[0] for line in sorted(lines)] == [
        str(folder / "blob.safetensors"), str(folder / "pipe.safetensors"),
    ]  # fmt: skip


def test_more_checkpoints_than_descriptors_at_first_are_checked(folder):
    for number in range(80):
        write(folder / f"{number}.safetensors", [tensor("a")])
    result = run("prlimit", "--nofile=64:1024", BINARY, "--check", folder)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")

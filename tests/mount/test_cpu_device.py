"""The cpu device: what it locks, what it says of itself, and which sources it refuses."""

import contextlib
import json
import os
import random
import subprocess
from pathlib import Path

import pytest

from checkpoints import every_dtype, file_name, frame, path_of, tensor, write, write_sharded
from commands import (
    PAGE, command, control_of, cpu_only, data_file, data_of, handle_of, holds, loaded,
    locked_nbytes, pages_nbytes, read_data, refusal, skip_unless_lockable, status,
)  # fmt: skip
from daemon import BINARY, DEADLINE, make_mountpoint, run

pytestmark = cpu_only
DIRECT_IO_SERVER = os.environ.get(
    "DIRECT_IO_SERVER", os.path.join(os.path.dirname(BINARY), "direct_io_server")
)
# Neighbours share pages: inside one page, across its edges, whole ones and none.
SIZES = [100, 5000, 4096, 3, 8192, 0, 12000, 1, 4095, 4097, 40, 40, 40, 20000, 7, 65536, 1, 0, 9]
SHARING = [tensor(f"t{n}", "U8", (size,)) for n, size in enumerate(SIZES)]
NAMES = [t.name for t in SHARING]


@pytest.fixture
def sharing(folder, mount):
    checkpoint = write(folder / "m.safetensors", SHARING, residue=3)
    return mount(checkpoint.path), checkpoint


def info_of(mounted):
    return json.loads((mounted / ".devices/cpu/info").read_bytes())


@pytest.mark.parametrize("seed", range(4))
def test_exactly_the_pages_of_what_is_loaded_are_locked(sharing, seed):
    mounted, checkpoint = sharing
    dice, held = random.Random(seed), set()
    assert locked_nbytes(mounted) == 0
    for _ in range(60):
        names = dice.sample(NAMES, dice.randint(1, 6))
        if dice.random() < 0.5:
            command(mounted, f"load cpu {' '.join(names)}")
            held |= set(names)
        elif gone := held.intersection(names):
            command(mounted, f"unload cpu {' '.join(gone)}")
            held -= gone
        assert locked_nbytes(mounted) == pages_nbytes(checkpoint, held)
        assert info_of(mounted)["held_nbytes"] == pages_nbytes(checkpoint, held)
        assert holds(mounted, *held)
    for name in dice.sample(sorted(held), len(held)):
        os.unlink(data_file(mounted, name))
        held.remove(name)
        assert locked_nbytes(mounted) == pages_nbytes(checkpoint, held)
    assert locked_nbytes(mounted) == 0


def test_a_repeated_load_skips_what_is_there(sharing):
    mounted, checkpoint = sharing
    command(mounted, "load cpu t1 t4")
    before = [Path(os.fsdecode(handle_of(mounted, name))).read_bytes() for name in ("t1", "t4")]
    said = command(mounted, "load cpu t1 t4 t6", "load cpu t1 t4 t6 t1")
    assert len(said.splitlines()) == 2
    after = [Path(os.fsdecode(handle_of(mounted, name))).read_bytes() for name in ("t1", "t4")]
    assert after == before
    assert locked_nbytes(mounted) == pages_nbytes(checkpoint, ["t1", "t4", "t6"])
    command(mounted, "unload cpu *")
    assert locked_nbytes(mounted) == 0


def test_reports_say_what_was_loaded_freed_and_still_held(sharing):
    mounted, checkpoint = sharing
    assert "5,000 bytes" in command(mounted, "load cpu t1")
    command(mounted, "load cpu t2")
    said = command(mounted, "unload cpu t1")
    freed = pages_nbytes(checkpoint, ["t1", "t2"]) - pages_nbytes(checkpoint, ["t2"])
    assert "5,000 bytes" in said and f"{freed:,}" in said


def test_status_and_info_count_what_is_loaded(sharing):
    mounted, checkpoint = sharing
    for names in (["t1"], ["t1", "t6", "t5"]):
        command(mounted, f"load cpu {' '.join(names)}")
        nbytes = sum(len(checkpoint[name].data) for name in names)
        (device,) = (d for d in status(mounted)["devices"] if d["name"] == "cpu")
        for found in (device, info_of(mounted)):
            assert found["name"] == "cpu"
            assert (found["loaded_tensors"], found["loaded_nbytes"]) == (len(names), nbytes)
            assert found["held_nbytes"] == pages_nbytes(checkpoint, names)
            assert 0 < found["free_nbytes"] < found["total_nbytes"]
    assert os.stat(mounted / ".devices/cpu/info").st_size == len(
        (mounted / ".devices/cpu/info").read_bytes()
    )


def test_data_holds_the_bytes_of_every_dtype(folder, mount):
    checkpoint = write(
        folder / "m.safetensors", [*every_dtype(), tensor("a/b"), tensor(".dot")], residue=5
    )
    mounted = mount(checkpoint.path)
    command(mounted, "load cpu *")
    assert holds(mounted, *(t.name for t in checkpoint))
    for t in checkpoint:
        assert read_data(mounted, t.name) == t.data
        assert os.stat(data_file(mounted, t.name)).st_size == len(t.data)
        assert run("cmp", path_of(mounted, t.name), data_file(mounted, t.name)).returncode == 0
    command(mounted, "verify cpu", "verify cpu *", "verify cpu *.matrix a/b")


def test_a_source_that_cannot_be_mapped_is_refused_with_a_reason(folder, mount):
    checkpoint, place = write(folder / "model.safetensors", SHARING), make_mountpoint()
    with subprocess.Popen(
        [DIRECT_IO_SERVER, checkpoint.path, place], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout.readline() == "ready\n"
            mounted = mount(os.path.join(place, "model.safetensors"))
            code, sentence = refusal(mounted, "load cpu t1")
            assert code == "EIO" and "mmap" in sentence and "model.safetensors" in sentence
            assert holds(mounted) and locked_nbytes(mounted) == 0
            mounted.unmount()
        finally:
            server.terminate()
            server.wait(DEADLINE)
            os.rmdir(place)


def touch_later(path):
    moment = os.stat(path).st_mtime_ns + 1_000_000_000
    os.utime(path, ns=(moment, moment))


def test_a_source_that_changed_is_stale_and_can_still_be_let_go(sharing):
    mounted, checkpoint = sharing
    command(mounted, "load cpu t1 t13")
    touch_later(checkpoint.path)
    for line in ("load cpu t2", "verify cpu", "verify cpu t1"):
        code, sentence = refusal(mounted, line)
        assert code == "ESTALE" and checkpoint.path.name in sentence and "change" in sentence, line
    assert holds(mounted, "t1", "t13")
    command(mounted, "unload cpu t1")
    os.unlink(data_file(mounted, "t13"))
    assert locked_nbytes(mounted) == 0


def test_a_source_cut_short_under_a_load_ends_nothing(sharing):
    mounted, checkpoint = sharing
    command(mounted, "load cpu *")
    os.truncate(checkpoint.path, checkpoint.offsets["t13"] + 100)
    with contextlib.suppress(OSError):
        assert read_data(mounted, "t15") == checkpoint["t15"].data
    assert refusal(mounted, "verify cpu")[0] == "ESTALE"
    command(mounted, "unload cpu *")
    assert locked_nbytes(mounted) == 0
    assert refusal(mounted, "load cpu t15")[0] == "ESTALE"


def test_a_replaced_source_goes_on_as_it_was(sharing, folder):
    mounted, checkpoint = sharing
    write(folder / "other", [tensor("other")])
    os.replace(folder / "other", checkpoint.path)
    command(mounted, "load cpu *", "verify cpu")
    for t in SHARING:
        assert read_data(mounted, t.name) == t.data


def test_shards_load_as_one_and_checkpoints_of_a_folder_apart(folder, mount):
    (folder / "model").mkdir()
    index, shards = write_sharded(folder / "model", [SHARING[:9], SHARING[9:]])
    mounted = mount(index)
    command(mounted, "load cpu *", "verify cpu")
    assert locked_nbytes(mounted) == pages_nbytes(shards[0], NAMES[:9]) + pages_nbytes(
        shards[1], NAMES[9:]
    )
    write(folder / "model/other.safetensors", [tensor("t1"), tensor("t2")])
    mirrored = mount(folder / "model")
    assert not control_of(mirrored).exists() and not (mirrored / ".devices").exists()
    one, other = mirrored / "model.tensors", mirrored / "other.tensors"
    command(one, "load cpu t1 t2 t3")
    command(other, "load cpu t2")
    assert holds(one, "t1", "t2", "t3") and holds(other, "t2")
    assert control_of(other).read_text() != control_of(one).read_text()
    assert refusal(other, "unload cpu t1")[0] == "ENOENT"
    command(one, "unload cpu *")
    assert holds(other, "t2") and locked_nbytes(mirrored) == PAGE
    os.unlink(data_file(other, "t2"))
    assert locked_nbytes(mirrored) == 0


@pytest.mark.parametrize("seed", range(2))
def test_commands_from_many_processes_leave_the_right_locks(sharing, seed):
    mounted, checkpoint = sharing
    script = (
        "for n in $(seq 40); do for v in load unload; do "
        'echo "$v cpu t$((RANDOM % 19)) t$((RANDOM % 19))" > $0; done; done 2> /dev/null; true'
    )
    children = [
        subprocess.Popen(["bash", "-c", f"RANDOM={seed}{n}; {script}", control_of(mounted)])
        for n in range(6)
    ]
    assert [child.wait(DEADLINE) for child in children] == [0] * 6
    held = [name for name in NAMES if file_name(name) in loaded(mounted)]
    assert locked_nbytes(mounted) == pages_nbytes(checkpoint, held)
    command(mounted, "load cpu *", "unload cpu *")
    assert locked_nbytes(mounted) == 0


def test_scattered_tensors_can_be_loaded_and_let_go_in_any_order(folder, mount):
    """Every second page: as many mappings as there are tensors."""
    count = 2000
    checkpoint = write(
        folder / "m.safetensors",
        [tensor(f"{'ab'[n % 2]}.{n}", "U8", (PAGE,)) for n in range(count)],
    )
    mounted = mount(checkpoint.path)
    command(mounted, "load cpu a.*")
    assert locked_nbytes(mounted) == pages_nbytes(
        checkpoint, [t.name for t in checkpoint if t.name[0] == "a"]
    )
    command(mounted, "load cpu b.*", "unload cpu a.*", "unload cpu b.*")
    assert locked_nbytes(mounted) == 0


MAX_MAP_COUNT = int(Path("/proc/sys/vm/max_map_count").read_text())


@pytest.mark.skipif(MAX_MAP_COUNT > 100_000, reason="takes a file of a page for each mapping")
def test_more_gaps_than_the_kernel_has_mappings_for_leave_nothing_locked(folder, mount):
    """Unlocking every second page can fail; what follows must make up for it."""
    count = MAX_MAP_COUNT * 5 // 4
    skip_unless_lockable(2 * count * PAGE)
    header = {
        f"{'ab'[n % 2]}.{n}": {
            "dtype": "U8",
            "shape": [PAGE],
            "data_offsets": [n * PAGE, (n + 1) * PAGE],
        }
        for n in range(count)
    }
    path, text = folder / "m.safetensors", json.dumps(header).encode()
    path.write_bytes(frame(text + b" " * (-(8 + len(text)) % PAGE)))
    os.truncate(path, os.path.getsize(path) + count * PAGE)
    mounted = mount(path)
    command(mounted, "load cpu *")
    assert locked_nbytes(mounted) == count * PAGE
    command(mounted, "unload cpu a.*", "unload cpu b.*")
    assert locked_nbytes(mounted) == info_of(mounted)["held_nbytes"] == 0


def test_a_low_limit_is_enomem_with_the_limit_and_what_raises_it(folder, mount, other_user):
    tensors = [tensor(f"t{n}", "U8", (PAGE,)) for n in range(64)]
    checkpoint = write(folder / "m.safetensors", tensors)
    limited = ("prlimit", "--memlock=131072:131072")
    mounted = mount(checkpoint.path, options="allow_root", other_user=True, started_by=limited)

    def as_owner(line):
        script = 'exec 3<>"$0"; echo "$1" >&3; result=$?; cat <&3; exit $result'
        return other_user("bash", "-c", script, control_of(mounted), line)

    refused = as_owner("load cpu *")
    assert refused.returncode != 0 and "Cannot allocate memory" in refused.stderr
    for part in (
        "load cpu",
        "131,072",
        "RLIMIT_MEMLOCK",
        "ulimit -l",
        "LimitMEMLOCK",
        "limits.conf",
    ):
        assert part in refused.stdout, refused.stdout
    assert locked_nbytes(mounted) == 0 and os.listdir(data_of(mounted)) == []
    assert as_owner("load cpu t?").returncode == 0
    assert 0 < locked_nbytes(mounted) <= 131072
    held = locked_nbytes(mounted)
    assert as_owner("load cpu t*").returncode != 0
    assert locked_nbytes(mounted) == held
    assert as_owner("unload cpu *").returncode == 0
    assert locked_nbytes(mounted) == 0

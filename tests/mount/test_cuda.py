"""Tensors in device memory, as users load, read, verify and unload them, on the simulated driver."""

import concurrent.futures
import errno
import json
import os
import re
import shutil
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from checkpoints import every_dtype, tensor, write, write_sharded
from commands import (
    command, control_of, data_file, data_of, handle_of, holds, loaded, loads, read_data, refusal,
    report, status, wait_until,
)  # fmt: skip
from daemon import (
    BINARY, DEADLINE, IS_ROOT, OTHER_UID, daemons_at, mounts_at, output_of, run, wait_for_end,
)  # fmt: skip
from gate import Writer

MIB = 1 << 20
FUSERMOUNT = os.path.realpath(shutil.which("fusermount3") or "fusermount3")
NAMES = ["wte", *(f"h.{n}.{part}" for n in range(6) for part in ("ln", "attn.w", "mlp.w")), "ln_f"]
SIZES = {"wte": 5_000_001, "ln": 768, "attn.w": 300_000, "mlp.w": 1_200_003, "ln_f": 0}
TENSORS = [tensor(name, "U8", (SIZES[name.split(".", 2)[-1]],)) for name in NAMES]


@pytest.fixture
def model(folder, gpu_mount):
    checkpoint = write(folder / "m.safetensors", TENSORS, residue=3)
    return gpu_mount(checkpoint.path), checkpoint


def info(mounted, device):
    return json.loads((mounted / f".devices/{device}/info").read_bytes())


def handle(mounted, name, device="cuda:0"):
    with open(handle_of(mounted, name, device), "rb") as file:
        return json.load(file)


def worker_of(mounted, name, device="cuda:0"):
    return handle(mounted, name, device)["pid"]


def alive(simulation):
    return [process for process in simulation.processes() if process.alive]


START_UP = """
cd "$1"
for half in 'cuda:0 wte h.[0-2].*' 'cuda:1 h.[3-5].* ln_f'; do
  exec 3<>.control
  echo "load $half" >&3 || exit 1
  cat <&3
  exec 3>&-
done
echo 'load cuda:1 nothing.*' > .control 2>/dev/null && exit 2
cat .control
"""


def test_a_start_up_script_places_halves_on_two_devices(model):
    mounted, checkpoint = model
    said = output_of("bash", "-c", START_UP, "start_up", mounted)
    number = r"[\d,]+"
    assert re.fullmatch(
        rf"load cuda:0: 10 tensors, {number} bytes loaded in [\d.]+ s, [\d.]+ GB/s\n"
        rf"load cuda:1: 10 tensors, {number} bytes loaded in [\d.]+ s, [\d.]+ GB/s\n"
        r'load cuda:1: .*"nothing\.\*".*\n',
        said,
    ), said
    halves = {"cuda:0": NAMES[:10], "cuda:1": NAMES[10:]}
    for device, names in halves.items():
        assert holds(mounted, *names, device=device)
        for name in names:
            output_of("cmp", mounted / name, data_file(mounted, name, device).decode())
        shown = info(mounted, device)
        assert shown["loaded_tensors"] == len(names)
        assert shown["loaded_nbytes"] == sum(len(checkpoint[name].data) for name in names)
        assert shown["held_nbytes"] % (2 * MIB) == 0
        assert shown["free_nbytes"] < shown["total_nbytes"] == 8 << 30
        assert shown["uuid"].startswith("GPU-") and "imulated" in shown["product"]
    assert [device["name"] for device in status(mounted)["devices"]] == ["cpu", "cuda:0", "cuda:1"]


def test_one_command_makes_replicas(model, simulation):
    mounted, checkpoint = model
    uuid = info(mounted, "cuda:1")["uuid"]
    said = command(mounted, f"load cuda:0,{uuid} *", f"verify {uuid}", "verify cuda:0")
    assert [line.split(":", 2)[:2] for line in said.splitlines()] == [
        ["load cuda", "0"], ["load cuda", "1"], ["verify cuda", "1"], ["verify cuda", "0"],
    ]  # fmt: skip
    for device in ("cuda:0", "cuda:1"):
        for t in checkpoint:
            assert read_data(mounted, t.name, device) == t.data
    assert refusal(mounted, f"load cuda:1,{uuid} *")[0] == "EINVAL"
    assert handle(mounted, "wte")["pid"] != handle(mounted, "wte", "cuda:1")["pid"]


def test_every_dtype_arrives(folder, gpu_mount):
    checkpoint = write(folder / "m.safetensors", every_dtype(), residue=5)
    mounted = gpu_mount(checkpoint.path)
    command(mounted, "load cuda:0 *", "verify cuda:0")
    for t in checkpoint:
        assert read_data(mounted, t.name, "cuda:0") == t.data


def test_shards_and_folders_load(folder, gpu_mount):
    (folder / "models").mkdir()
    shards = [[tensor("a", "U8", (70_001,)), tensor("b")], [tensor("c", "U8", (5 * MIB,))]]
    write_sharded(folder / "models", shards)
    mounted = gpu_mount(folder / "models")
    place = mounted / "model.tensors"
    command(place, "load cuda:0 c", "load cuda:0 *", "verify cuda:0")
    for t in (t for shard in shards for t in shard):
        assert read_data(place, t.name, "cuda:0") == t.data
    assert holds(place, "a", "b", "c", device="cuda:0")


def test_looking_around_starts_nothing(model, simulation):
    mounted, _ = model
    for words in (["find"], ["du", "-s"], ["ls", "-laR"], ["cat", ".status", ".summary"]):
        output_of(*words, cwd=mounted.path)
    assert [device["name"] for device in status(mounted)["devices"]] == ["cpu"]
    assert simulation.processes() == []
    # The first look below .devices asks which there are, in a process that ends.
    assert sorted(os.listdir(mounted / ".devices")) == ["cpu", "cuda:0", "cuda:1"]
    output_of("ls", "-laR", mounted / ".devices")
    assert info(mounted, "cuda:0")["free_nbytes"] is None
    assert simulation.counters()["contexts_created"] == 0
    assert alive(simulation) == []


def test_the_daemon_never_meets_the_driver(model):
    mounted, _ = model
    command(mounted, "load cuda:0 *", "verify cuda:0")
    maps = Path(f"/proc/{mounted.pid}/maps").read_text()
    assert "libcuda" not in maps
    assert "libcuda" in Path(f"/proc/{worker_of(mounted, 'wte')}/maps").read_text()


def test_a_worker_has_nothing_of_the_mount_open(folder, gpu_mount):
    """libfuse leaves a socket open over exec where auto_unmount is asked for."""
    checkpoint = write(folder / "m.safetensors", TENSORS)
    mounted = gpu_mount(checkpoint.path, options="auto_unmount")
    command(mounted, "load cuda:0 *")
    pid = worker_of(mounted, "wte")
    targets = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    assert not any("/dev/fuse" in target or checkpoint.path.name in target for target in targets)
    assert sum(target.startswith("socket:") for target in targets) == 1


def test_a_killed_daemon_takes_its_worker_and_its_mount_along(folder, gpu_mount, simulation):
    checkpoint = write(folder / "m.safetensors", TENSORS)
    mounted = gpu_mount(checkpoint.path, options="auto_unmount")
    command(mounted, "load cuda:0 wte")
    simulation.configure(stall=1)
    writer = Writer(mounted, "load cuda:0 h.*\n")
    wait_until(lambda: writer.is_known(mounted), "the load")
    # Root's eyes only: others cannot see what a setuid program is.
    unmounting = [os.pidfd_open(pid) for pid in daemons_at(mounted.path, FUSERMOUNT)]
    assert len(unmounting) == int(IS_ROOT)
    os.kill(mounted.pid, signal.SIGKILL)
    mounted.wait_for_end()
    wait_until(lambda: not alive(simulation), "the worker's end")
    for pidfd in unmounting:
        wait_for_end(pidfd)
        os.close(pidfd)
    # fusermount3 leaves the mount, dead, where it is faster than the kernel's end of the connection.
    wait_until(lambda: not mounts_at(mounted.path) or is_dead(mounted.path), "the mount's end")
    writer.finish()
    assert simulation.used_bytes() == 0


def is_dead(path):
    try:
        os.statvfs(path)
    except OSError as error:
        return error.errno == errno.ENOTCONN
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_daemon_that_is_told_to_end_ends_during_a_load(model, simulation, number):
    mounted, _ = model
    simulation.configure(stall=1)
    writer = Writer(mounted, "load cuda:0 *\n")
    wait_until(lambda: writer.is_known(mounted), "the load")
    os.kill(mounted.pid, number)
    mounted.wait_for_end()
    assert writer.finish() in ("EINTR", "ENOTCONN", "ECONNABORTED")
    wait_until(lambda: not alive(simulation), "the worker's end")
    assert not mounts_at(mounted.path)


def test_the_worker_ends_when_its_last_tensor_has_gone(model, simulation):
    mounted, _ = model
    command(mounted, "load cuda:0 wte h.0.ln")
    output_of("rm", data_of(mounted, "cuda:0") / "wte")
    assert simulation.allocated_bytes() > 0
    command(mounted, "unload cuda:0 *")
    assert simulation.allocated_bytes() == 0
    wait_until(lambda: not alive(simulation), "the worker's end")
    assert status(mounted)["warnings"] == []
    assert info(mounted, "cuda:0")["free_nbytes"] is None
    command(mounted, "load cuda:0 wte", "verify cuda:0")


def test_reads_wait_neither_for_a_load_nor_for_its_device(model, simulation):
    mounted, checkpoint = model
    command(mounted, "load cuda:0 wte")
    simulation.configure(copy_bytes_per_second=200_000)
    writer = Writer(mounted, "load cuda:0 h.*\n")
    wait_until(lambda: writer.is_known(mounted), "the load")
    for name in ("h.3.mlp.w", "wte"):
        assert (mounted / name).read_bytes() == checkpoint[name].data
    command(mounted, "load cuda:1 ln_f", "load cpu wte")
    running = loads(mounted)
    assert [load["device"] for load in running] == ["cuda:0"]
    assert running[0]["nbytes_done"] < running[0]["nbytes_total"]
    with open(data_file(mounted, "wte", "cuda:0"), "rb", buffering=0) as file:
        assert os.pread(file.fileno(), 100, 70) == checkpoint["wte"].data[70:170]
    writer.kill(signal.SIGINT)
    writer.finish()


def test_sixteen_readers_read_back_at_once(model):
    mounted, checkpoint = model
    command(mounted, "load cuda:0 *")
    names = NAMES * 4
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for name, data in zip(names, pool.map(lambda n: read_data(mounted, n, "cuda:0"), names)):
            assert data == checkpoint[name].data
    copied = output_of(
        "dd", f"if={data_file(mounted, 'wte', 'cuda:0').decode()}", "bs=70001", "iflag=fullblock",
        binary=True,
    )  # fmt: skip
    assert copied == checkpoint["wte"].data


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_cancelling_frees_what_a_load_took(model, simulation, number):
    mounted, _ = model
    command(mounted, "load cuda:0 ln_f h.0.ln")
    before = simulation.used_bytes()
    simulation.configure(copy_bytes_per_second=12_000_000)
    writer = Writer(mounted, "load cuda:0 *\n", handled=[signal.SIGINT])
    wait_until(lambda: writer.is_known(mounted) and loads(mounted)[0]["nbytes_done"], "progress")
    assert simulation.used_bytes() > before
    writer.kill(number)
    assert writer.finish() == ("EINTR" if number == signal.SIGINT else number.name)
    wait_until(lambda: loads(mounted) == [], "the load's end")
    assert simulation.used_bytes() == before
    assert holds(mounted, "ln_f", "h.0.ln", device="cuda:0")
    assert simulation.counters()["freed_while_copying"] == 0
    simulation.configure(copy_bytes_per_second=None)
    command(mounted, "load cuda:0 *", "verify cuda:0")


def test_verify_names_the_tensor_that_a_client_wrote_to(model):
    mounted, checkpoint = model
    command(mounted, "load cuda:0 *")
    seen = handle(mounted, "h.2.mlp.w")
    # What a client has attached it may write to: here through the simulation's own file.
    for link in Path(f"/proc/{seen['pid']}/fd").iterdir():
        if "memfd:" in os.readlink(link) and link.stat().st_size == seen["slab_nbytes"]:
            with open(link, "r+b", buffering=0) as memory:
                data = os.pread(memory.fileno(), seen["nbytes"], seen["offset"])
                assert data == checkpoint["h.2.mlp.w"].data
                os.pwrite(memory.fileno(), bytes([data[777] ^ 1]), seen["offset"] + 777)
    code, sentence = refusal(mounted, "verify cuda:0")
    assert code == "EIO"
    assert '"h.2.mlp.w"' in sentence and "byte 777 " in sentence
    command(mounted, "unload cuda:0 h.2.mlp.w", "verify cuda:0")
    command(mounted, "load cuda:0 h.2.mlp.w", "verify cuda:0")


def test_slabs_describe_their_tensors_and_are_leased(model, simulation):
    mounted, checkpoint = model
    command(mounted, "load cuda:0 h.*")
    slabs = mounted / ".devices/cuda:0/slabs"
    (number,) = os.listdir(slabs)
    with open(slabs / number, "rb") as file:
        text = file.read()
        assert os.fstat(file.fileno()).st_size == len(text)
        slab = json.loads(text)
        names = [t["name"] for t in slab["tensors"]]
        assert names == [name for name in NAMES if name.startswith("h.")]
        assert slab["export"] == "cuda_ipc" and len(slab["ipc_handle"]) == 128
        for entry in slab["tensors"]:
            one = handle(mounted, entry["name"])
            for field in ("offset", "nbytes", "dtype", "shape"):
                assert one[field] == entry[field]
            assert one["ipc_handle"] == slab["ipc_handle"]
            assert one["offset"] % 256 == 0
        # Any tensor in it is in use.
        code, sentence = refusal(mounted, "unload cuda:0 h.3.ln")
        assert code == "EBUSY" and f"pid {os.getpid()} " in sentence
        assert run("rm", "-f", data_of(mounted, "cuda:0") / "h.0.ln").returncode != 0
    code, sentence = refusal(mounted, "unload cuda:0 wte")
    assert code == "ENOENT"
    with pytest.raises(OSError) as refused:
        os.unlink(slabs / number)
    assert refused.value.errno == errno.EROFS
    output_of("rm", data_of(mounted, "cuda:0") / "h.3.ln")
    shorter = json.loads((slabs / number).read_bytes())
    assert [t["name"] for t in shorter["tensors"]] == [n for n in names if n != "h.3.ln"]
    assert (slabs / number).stat().st_size == len((slabs / number).read_bytes())
    said = command(mounted, "unload cuda:0 h.0.*")
    assert ", 0 freed, " in said and "still held by neighbours" in said
    command(mounted, "unload cuda:0 *")
    assert os.listdir(slabs) == []
    assert simulation.allocated_bytes() == 0
    assert simulation.counters()["freed_while_imported"] == 0


def test_why_the_worker_cannot_be_started_is_said(folder, mount, other_user, simulation):
    """By that user, the program cannot be executed."""
    program = folder / "safetensorfs"
    shutil.copy(BINARY, program)
    program.chmod(0o700)
    checkpoint = write(folder / "m.safetensors", TENSORS)
    mounted = mount(
        checkpoint.path, options=f"uid={OTHER_UID}", program=(str(program),),
        environment=simulation.environment(),
    )  # fmt: skip
    error, said = refusal(mounted, "load cuda:0 *")
    assert error == "ENODEV"
    assert (
        "the search for GPUs failed: the process that uses the GPU: cannot be started as user "
        f"{OTHER_UID}: Permission denied" in said
    )


def test_the_worker_runs_as_the_user_that_uid_names(folder, mount, other_user, simulation):
    """Who need not be able to read the model, and learns nothing of what root has."""
    checkpoint = write(folder / "m.safetensors", TENSORS)
    checkpoint.path.chmod(0o600)
    mounted = mount(
        checkpoint.path, options=f"allow_other,uid={OTHER_UID}",
        environment=simulation.environment() | {"SECRET": "of root", "CUDA_CACHE_DISABLE": "1"},
    )  # fmt: skip
    script = 'echo "load cuda:0 *" > "$0/.control" && cat "$0/.control" "$0/.devices/cuda:0/slabs/1"'
    result = other_user("sh", "-c", script, mounted)
    assert result.returncode == 0, result.stderr
    slab = json.loads(result.stdout.partition("\n")[2])
    assert slab["euid"] == OTHER_UID
    assert os.stat(f"/proc/{slab['pid']}").st_uid == OTHER_UID
    groups = Path(f"/proc/{slab['pid']}/status").read_text()
    assert re.search(rf"^Uid:(\t{OTHER_UID}){{4}}$", groups, re.MULTILINE)
    assert not re.search(r"^Groups:.*\b0\b", groups, re.MULTILINE)
    environment = Path(f"/proc/{slab['pid']}/environ").read_bytes().split(b"\0")
    assert b"CUDA_CACHE_DISABLE=1" in environment and b"SECRET=of root" not in environment
    for descriptor in range(3):
        assert os.readlink(f"/proc/{slab['pid']}/fd/{descriptor}") == "/dev/null"
    for t in checkpoint:
        assert read_data(mounted, t.name, "cuda:0") == t.data


def test_a_load_costs_the_daemon_no_memory(folder, gpu_mount):
    tensors = [tensor(f"t{n}", "U8", (0,)) for n in range(3)]
    path = write(folder / "m.safetensors", tensors).path
    nbytes = 200 * MIB
    header = json.dumps({"t": {"dtype": "U8", "shape": [nbytes], "data_offsets": [0, nbytes]}})
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header.encode())
        file.truncate(8 + len(header) + nbytes)
    mounted = gpu_mount(path)

    def peak():
        text = Path(f"/proc/{mounted.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", text)[1]) << 10

    before = peak()
    command(mounted, "load cuda:0 *", "verify cuda:0", "unload cuda:0 *")
    assert peak() - before < 16 * MIB


def test_loading_again_skips_what_is_there(model, simulation):
    mounted, _ = model
    command(mounted, "load cuda:0 h.*")
    copied = simulation.counters()["host_to_device_bytes"]
    said = command(mounted, "load cuda:0 h.*")
    assert "0 tensors, 0 bytes loaded" in said and "18 tensors already there" in said
    assert simulation.counters()["host_to_device_bytes"] == copied
    assert stat.S_IMODE(os.stat(handle_of(mounted, "h.0.ln", "cuda:0")).st_mode) == 0o400


def test_a_source_that_changed_is_neither_loaded_nor_verified(model, simulation):
    mounted, checkpoint = model
    command(mounted, "load cuda:0 wte")
    with open(checkpoint.path, "ab") as file:
        file.write(b"x")
    assert refusal(mounted, "load cuda:0 h.*")[0] == "ESTALE"
    assert refusal(mounted, "verify cuda:0")[0] == "ESTALE"
    assert loaded(mounted, "cuda:0") == {b"wte"}
    command(mounted, "unload cuda:0 *")
    assert simulation.allocated_bytes() == 0


def test_ctrl_c_in_a_shell_cancels(model, simulation):
    mounted, _ = model
    simulation.configure(copy_bytes_per_second=12_000_000)
    with subprocess.Popen(
        ["bash", "-ic", 'trap "exit 77" INT; echo "load cuda:0 *" > "$0"', control_of(mounted)],
        start_new_session=True, stderr=subprocess.DEVNULL,
    ) as shell:  # fmt: skip
        wait_until(lambda: loads(mounted), "the load")
        os.killpg(shell.pid, signal.SIGINT)
        assert shell.wait(DEADLINE) != 0
    wait_until(lambda: loads(mounted) == [], "the load's end")
    assert report(mounted).startswith("load cuda:0: cancelled")
    assert simulation.allocated_bytes() == 0

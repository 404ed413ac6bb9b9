"""Devices of two processes are matched by UUID, whatever numbers they have in each."""

import pytest

from checkpoints import tensor, write
from safetensorfs import Mount

GPU_1 = "GPU-513a1a7e-d00d-4000-8000-00000000c001"


@pytest.fixture
def checkpoint(folder):
    return write(folder / "m.safetensors", [tensor("a"), tensor("empty", "F32", (0,))])


def attached(client, mounted, device):
    """The devices of a tensor and of an empty one."""
    client.do("arrays = load_file(path, word, 'cai')", path=mounted.path, word=device)
    client.do("one = Mount(path).attach(word, 'a', 'cai')")
    assert client.tell("one.device == arrays['a'].device == arrays['empty'].device")
    return client.tell("(one.device, bytes_on_device(one))")


@pytest.mark.parametrize(
    "setting, devices",
    [
        ("0,1", ("cuda:0", "cuda:1")),
        ("1,0", ("cuda:1", "cuda:0")),
        (f"{GPU_1},0", ("cuda:1", "cuda:0")),
        ("1", (None, "cuda:0")),
    ],
)
def test_the_client_numbers_them_otherwise(checkpoint, gpu_mounting, processes, setting, devices):
    mounted = gpu_mounting(checkpoint.path)
    client = processes(CUDA_VISIBLE_DEVICES=setting)
    for number, device in enumerate(devices):
        if device is not None:
            assert attached(client, mounted, f"cuda:{number}") == (device, checkpoint["a"].data)


def test_the_daemon_numbers_them_otherwise(checkpoint, simulation, mounting, processes):
    environment = {**simulation.environment(), "CUDA_VISIBLE_DEVICES": "1,0"}
    mounted = mounting(checkpoint.path, environment=environment)
    assert attached(processes(), mounted, "cuda:0") == ("cuda:1", checkpoint["a"].data)
    assert Mount(mounted).devices()["cuda:0"]["uuid"] == GPU_1


def test_pytorch_is_given_the_clients_number(checkpoint, gpu_mounting, processes):
    pytest.importorskip("torch")
    mounted = gpu_mounting(checkpoint.path)
    client = processes(CUDA_VISIBLE_DEVICES="1,0")
    client.do("without_driver(); t = load_file(path, 'cuda:0', 'pt')", path=mounted.path)
    assert client.tell("[str(x.device) for x in t.values()]") == ["cuda:1", "cuda:1"]
    assert client.tell("str(Mount(path).attach('cuda:0', 'a', 'pt').device)") == "cuda:1"

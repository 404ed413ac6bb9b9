"""A slab is closed when its last tensor dies: not before, not in a child, not at exit."""

import errno
import json
import os
import signal

import pytest

from attached_process import Raised
from checkpoints import tensor, write
from daemon import wait_for_end
from safetensorfs import Mount

NAMES = "abcdefgh"


@pytest.fixture
def model(folder, gpu_mounting):
    """All tensors in one slab."""
    checkpoint = write(folder / "m.safetensors", [tensor(n, "F32", (3, 4)) for n in NAMES])
    mounted = gpu_mounting(checkpoint.path)
    Mount(mounted).load("cuda:0", "*")
    return mounted, checkpoint


@pytest.fixture
def client(model, processes):
    client = processes()
    client.do("mount = Mount(path); path = mount.path", path=model[0].path)
    return client


def leases(mounted):
    return Mount(mounted).devices()["cuda:0"]["leases"]


def opened(simulation, client):
    """(slabs that a process has open, bytes of its contexts)."""
    open_ = [i for i in simulation.imports() if i.importer_pid == client.pid]
    return len(open_), sum(simulation.process(client.pid).context)


def worker_of(mounted):
    name = os.listdir(mounted / ".devices/cuda:0/slabs")[0]
    return json.loads((mounted / ".devices/cuda:0/slabs" / name).read_text())["pid"]


def test_a_slab_is_closed_with_its_last_tensor(model, client, simulation):
    mounted, _ = model
    client.do("arrays = load_file(path, 'cuda:0', 'cai')")
    client.do("again = mount.attach('cuda:0', 'a', 'cai')")
    for name in NAMES:
        assert opened(simulation, client)[0] == leases(mounted) == 1
        client.do("del arrays[name]", name=name)
    count, context = opened(simulation, client)
    assert count == leases(mounted) == 1 and context > 0
    client.do("del again")
    assert opened(simulation, client) == (0, 0)
    assert client.tell("open_files(path)") == []
    Mount(mounted).unload("cuda:0", "*")
    assert simulation.counters()["call.cuIpcCloseMemHandle"] == 1


VIEWS = {
    "view": "array.view(torch.int32)",
    "part": "array.as_strided((2,), (1,), 4)",
    "transposed": "array.t()",
    "detached": "array.detach()",
    "parameter": "torch.nn.Parameter(array, requires_grad=False)",
    "data of a parameter": "torch.nn.Parameter(array, requires_grad=False).data",
    "storage": "array.untyped_storage()",
    "capsule": "torch._C._to_dlpack(array)",
    "in a module": "torch.nn.ParameterList([torch.nn.Parameter(array, requires_grad=False)])",
    "in a cycle": "(lambda kept: kept.append(kept) or kept)([array])",
}


def test_a_view_keeps_it_open(model, client, simulation):
    pytest.importorskip("torch")
    mounted, _ = model
    client.do("import torch; without_driver()")
    for name, view in VIEWS.items():
        client.do("array = mount.attach('cuda:0', 'b', 'pt')")
        client.do(f"view = {view}; del array; gc.collect()")
        assert opened(simulation, client)[0] == leases(mounted) == 1, name
        client.do("del view; gc.collect()")
        assert opened(simulation, client) == (0, 0) and leases(mounted) == 0, name


def test_each_tensor_has_a_storage_of_its_own(client):
    pytest.importorskip("torch")
    client.do("without_driver(); t = load_file(path, 'cuda:0', 'pt')")
    assert client.tell("{x.untyped_storage().nbytes() for x in t.values()}") == {48}
    assert client.tell("{x.storage_offset() for x in t.values()}") == {0}
    assert client.tell("len({x.untyped_storage().data_ptr() for x in t.values()})") == len(NAMES)


def test_pytorch_may_hold_a_tensor_without_python(client, model, simulation):
    """On the CPU, where operations work: storages are the same there."""
    pytest.importorskip("torch")
    client.do("import torch; array = mount.attach('cuda:0', 'c', 'cai')")
    client.do(
        "core, cpu = torch._C, torch.device('cpu')\n"
        "core._construct_CUDA_Tensor_From_Storage_And_Metadata = lambda data, storage: (\n"
        "    torch.empty(0, dtype=data['dtype']).set_(storage, 0, data['size'], data['stride']))\n"
        "without_driver(); real, torch.device = torch.device, lambda *words: cpu\n"
        "tensor = mount.attach('cuda:0', 'c', 'pt'); torch.device = real; del array\n"
    )
    assert client.tell("tensor.numpy().tobytes()") == model[1]["c"].data
    client.do("weight = torch.ones(3, 4, requires_grad=True)")
    client.do("loss = (tensor * weight).sum(); del tensor; gc.collect()")
    assert opened(simulation, client)[0] == 1
    client.do("del loss; gc.collect()")
    assert opened(simulation, client) == (0, 0)


def test_work_on_the_device_is_waited_for(model, client, simulation):
    """A copy that was issued and has not executed when the tensor dies."""
    _, checkpoint = model
    client.do("array = mount.attach('cuda:0', 'd', 'cai')")
    simulation.configure(copy_delay_us=300_000)
    client.do(
        "import ctypes, safetensorfs.cuda_driver as c\n"
        "lib, to, nbytes = ctypes.CDLL('libcuda.so.1'), ctypes.c_void_p(), ctypes.c_size_t(48)\n"
        "address, null = ctypes.c_uint64(array.pointer), ctypes.c_void_p()\n"
        "context = ctypes.c_void_p(c.driver().retain(0))\n"
        "assert lib.cuCtxSetCurrent(context) == 0\n"
        "assert lib.cuMemHostAlloc(ctypes.byref(to), nbytes, 0) == 0\n"
        "assert lib.cuMemcpyDtoHAsync_v2(to, address, nbytes, null) == 0\n"
        "before = ctypes.string_at(to, 48); del array"
    )
    told = client.tell("(before, ctypes.string_at(to, 48))")
    assert told == (bytes(48), checkpoint["d"].data)
    assert opened(simulation, client)[0] == 0


def test_the_current_context_stays_the_callers(client, simulation):
    client.do(
        "import ctypes, safetensorfs.cuda_driver as c\n"
        "lib, told = ctypes.CDLL('libcuda.so.1'), []\n"
        "def current():\n"
        "    value = ctypes.c_void_p(); lib.cuCtxGetCurrent(ctypes.byref(value))\n"
        "    return value.value\n"
        "own = c.driver().retain(1)\n"
        "for context in None, own:\n"
        "    lib.cuCtxSetCurrent(ctypes.c_void_p(context))\n"
        "    array = mount.attach('cuda:0', 'a', 'cai'); told.append(current())\n"
        "    del array; told.append(current())\n"
    )
    assert client.tell("told == [None, None, own, own]")


def test_a_slab_that_cannot_be_closed_keeps_its_lease(model, client, simulation):
    mounted, _ = model
    client.do("import warnings; array = mount.attach('cuda:0', 'a', 'cai')")
    simulation.configure(fail_call="cuCtxSynchronize:700")
    client.do(
        "with warnings.catch_warnings(record=True) as said:\n"
        "    warnings.simplefilter('always'); del array\n"
    )
    assert client.tell("[(w.category, str(w.message)) for w in said]") == [(
        ResourceWarning,
        "memory of safetensorfs stays open, and its lease, until this process ends: "
        "cuCtxSynchronize failed with CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was "
        "encountered (700)",
    )]  # fmt: skip
    assert opened(simulation, client)[0] == leases(mounted) == 1
    assert client.tell("exit_status_of_child(lambda: len(open_files(path)))") == 0
    simulation.configure(fail_call=None)
    client.do("array = mount.attach('cuda:0', 'a', 'cai'); del array")  # goes on
    assert leases(mounted) == 1
    assert client.end() == 0
    Mount(mounted).unload("cuda:0", "*")


def test_close_counts_the_survivors_and_leaves_them_alive(model, client, simulation):
    mounted, checkpoint = model
    client.do("kept = [mount.attach('cuda:0', name, 'cai') for name in 'abc']; del kept[0]")
    assert client.tell("mount.close()") == 2
    client.do("del kept[0]")
    assert client.tell("mount.close()") == 1
    assert client.tell("bytes_on_device(kept[0])") == checkpoint["c"].data
    assert leases(mounted) == 1
    client.do("kept.clear()")
    assert client.tell("mount.close()") == 0 and leases(mounted) == 0
    with pytest.raises(Raised, match="is closed"):
        client.do("mount.attach('cuda:0', 'a', 'cai')")


def test_close_forgets_tensors_that_have_died(client):
    client.do("kept = [mount.attach('cuda:0', 'a', 'cai') for _ in range(3)]")
    client.do("for _ in range(1000): mount.attach('cuda:0', 'b', 'cai')")
    assert client.tell("len(mount._attachments)") < 100
    assert client.tell("mount.close()") == 3


@pytest.mark.parametrize("framework", ["cai", "pt"])
def test_nothing_is_called_at_exit(model, client, simulation, framework):
    mounted, _ = model
    if framework == "pt":
        pytest.importorskip("torch")
        client.do("without_driver()")
    client.do("arrays = load_file(path, 'cuda:0', kind); arrays['self'] = arrays", kind=framework)
    client.do("kept = mount.attach('cuda:0', 'a', kind); mount.kept = kept")
    assert client.end() == 0
    counts = simulation.counters()
    assert counts["call.cuIpcCloseMemHandle"] == counts["call.cuDevicePrimaryCtxRelease_v2"] == 0
    Mount(mounted).unload("cuda:0", "*")


def test_a_forked_child_has_no_lease_and_closes_nothing(model, client, simulation):
    mounted, checkpoint = model
    client.do(
        "array = mount.attach('cuda:0', 'a', 'cai'); all_ = load_file(path, 'cuda:0', 'cai')\n"
        "def child():\n"
        "    global array, all_\n"
        "    assert open_files(path) == []\n"
        "    try: array.__cuda_array_interface__\n"
        "    except RuntimeError as error: assert str(error) == (\n"
        "        \"tensor 'a' is in memory of the process that forked\")\n"
        "    else: return 1\n"
        "    assert mount.close() == 0\n"
        "    del array, all_; gc.collect()\n"
    )
    assert client.tell("exit_status_of_child(child)") == 0
    assert simulation.counters()["call.cuIpcCloseMemHandle"] == 0
    assert leases(mounted) == 1
    assert client.tell("bytes_on_device(array)") == checkpoint["a"].data
    client.do("del array, all_")
    assert opened(simulation, client) == (0, 0) and leases(mounted) == 0


def test_a_child_that_lives_on_does_not_hold_the_lease(model, client):
    mounted, _ = model
    client.do(
        "array = mount.attach('cuda:0', 'a', 'cai'); reader, writer = os.pipe()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os.close(writer); os.read(reader, 1); os._exit(0)\n"
        "del array"
    )
    Mount(mounted).unload("cuda:0", "*")
    client.do("os.close(writer)")
    assert client.tell("os.waitpid(child, 0)[1]") == 0


def test_a_child_of_a_process_that_uses_cuda_is_told_to_start_anew(client):
    client.do("array = mount.attach('cuda:0', 'a', 'cai')")
    client.do(
        "def child():\n"
        "    try: Mount(path).attach('cuda:0', 'b', 'cai')\n"
        "    except MountError as error:\n"
        "        return 0 if str(error).endswith(\n"
        "            'cuInit failed with CUDA_ERROR_NOT_INITIALIZED: initialization error (3); if '\n"
        "            'this process was forked from one that uses CUDA, start it anew instead: '\n"
        "            'multiprocessing\\'s \"spawn\"') else 1\n"
        "    return 2\n"
    )
    assert client.tell("exit_status_of_child(child)") == 0


def test_a_child_of_a_process_that_does_not_use_cuda_attaches(client, model, simulation):
    client.do(
        "def child():\n"
        "    array = mount.attach('cuda:0', 'b', 'cai')\n"
        "    assert bytes_on_device(array) == data\n"
        "    del array",
        data=model[1]["b"].data,
    )
    assert client.tell("exit_status_of_child(child)") == 0
    assert simulation.counters()["call.cuIpcCloseMemHandle"] == 1


def test_threads_attach_and_drop_side_by_side(model, client, simulation):
    mounted, checkpoint = model
    client.do(
        "failures, start = [], threading.Barrier(8)\n"
        "def work(number):\n"
        "    try:\n"
        "        start.wait()\n"
        "        for i in range(60):\n"
        "            name = 'abcdefgh'[(number + i) % 8]\n"
        "            array = mount.attach('cuda:0', name, 'cai')\n"
        "            assert bytes_on_device(array) == data[name]\n"
        "            if i % 20 == number:\n"
        "                arrays = load_file(path, 'cuda:0', 'cai')\n"
        "                assert {n: bytes_on_device(a) for n, a in arrays.items()} == data\n"
        "                del arrays\n"
        "            del array\n"
        "    except BaseException as error: failures.append(repr(error))\n"
        "threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n",
        data={t.name: t.data for t in checkpoint},
    )
    assert client.tell("failures") == []
    assert opened(simulation, client) == (0, 0) and leases(mounted) == 0
    counts = simulation.counters()
    assert counts["handles_opened"] == counts["call.cuIpcCloseMemHandle"]


@pytest.mark.parametrize("framework", ["cai", "pt"])
def test_a_worker_that_is_killed_takes_no_client_with_it(model, processes, simulation, framework):
    mounted, checkpoint = model
    if framework == "pt":
        pytest.importorskip("torch")
    clients = [processes() for _ in range(2)]
    for client in clients:
        client.do("without_driver()" if framework == "pt" else "pass")
        client.do("arrays = load_file(path, 'cuda:0', kind)", path=mounted.path, kind=framework)
    worker = worker_of(mounted)
    pidfd = os.pidfd_open(worker)
    os.kill(worker, signal.SIGKILL)
    wait_for_end(pidfd)
    os.close(pidfd)
    mount = Mount(mounted)
    simulation.wait_for(lambda _: mount.devices()["cuda:0"]["loaded_tensors"] == 0)
    with pytest.raises(Raised) as caught:
        clients[0].do("Mount(path).attach('cuda:0', 'a', kind)")
    assert caught.value.errno == errno.ENOENT
    # What is loaded anew is other memory; the old stays readable for as long as it is held.
    clients[0].do("new = load_file(path, 'cuda:0', kind)")
    for arrays in "arrays", "new":
        told = clients[0].tell(f"{{n: bytes_on_device(a) for n, a in {arrays}.items()}}")
        assert told == {t.name: t.data for t in checkpoint}
    clients[0].do("del arrays, new")
    assert opened(simulation, clients[0]) == (0, 0)
    assert [client.end() for client in clients] == [0, 0]
    mount.unload("cuda:0", "*")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_daemon_that_ends_takes_no_client_with_it(model, client, simulation, number):
    mounted, checkpoint = model
    client.do("arrays = load_file(path, 'cuda:0', 'cai')")
    worker = os.pidfd_open(worker_of(mounted))
    os.kill(mounted.pid, number)
    mounted.wait_for_end()
    wait_for_end(worker)
    os.close(worker)
    told = client.tell("{n: bytes_on_device(array) for n, array in arrays.items()}")
    assert told == {t.name: t.data for t in checkpoint}
    client.do("del arrays")
    assert opened(simulation, client) == (0, 0) and client.end() == 0

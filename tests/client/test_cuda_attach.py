"""Other processes attach to what the daemon holds on a GPU: the same bytes, under one lease."""

import errno
import math
import os
import re

import pytest

from attached_process import Raised
from checkpoints import every_dtype, tensor, write, write_sharded
from expected import NUMPY, PACKED, SMALL_FLOATS
from safetensorfs import CommandError, Mount

STAND_IN = os.path.join(os.path.dirname(__file__), "stand_in")
FRAMEWORKS = ["cai", "pt", "cp"]


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    if request.param == "pt":
        pytest.importorskip("torch")
    return request.param


@pytest.fixture
def client_of(processes):
    """A process whose kind of arrays can be made on a machine without GPUs."""

    def start(framework, **variables):
        if framework == "cp":
            path = os.pathsep.join((STAND_IN, os.environ.get("PYTHONPATH", "")))
            variables = {"STAND_IN": path, **variables}
        client = processes(**variables)
        client.do("kind = framework", framework=framework)
        if framework == "cp":
            client.do("import sys; sys.path[:0] = os.environ['STAND_IN'].split(os.pathsep)")
        elif framework == "pt":
            client.do("without_driver()")
        return client

    return start


@pytest.fixture
def model(folder, gpu_mounting):
    checkpoint = write(folder / "m.safetensors", every_dtype(3), residue=3)
    return gpu_mounting(checkpoint.path), checkpoint


def leases(mounted, device="cuda:0"):
    return Mount(mounted).devices()[device]["leases"]


def imports(simulation):
    """How many slabs living processes have opened."""
    return sum(entry.importer_alive for entry in simulation.imports())


def integers(dtype):
    """The typestr of a dtype for libraries that lack the small floats."""
    if dtype in PACKED:
        return "|u1"
    if dtype in SMALL_FLOATS:
        return "<u2" if dtype == "BF16" else "|u1"
    return {"bool": "|b1", "complex64": "<c8", "int8": "|i1", "uint8": "|u1"}.get(NUMPY[dtype])


DESCRIBE = {
    "cai": "(array.device, array.__cuda_array_interface__['typestr'], "
    "array.__cuda_array_interface__['shape'])",
    "cp": "(f'cuda:{array.data.mem.device_id}', array.dtype.str, array.shape)",
    "pt": "(str(array.device), str(array.dtype), tuple(array.shape))",
}


def wanted(t, framework):
    """What DESCRIBE gives for a tensor; None for a typestr that NumPy knows well enough."""
    shape = (len(t.data),) if t.dtype in PACKED else t.shape
    if framework != "pt":
        return "cuda:0", integers(t.dtype), shape
    if t.dtype == "F4" and t.shape[-1] % 2 == 0:
        return "cuda:0", "torch.float4_e2m1fn_x2", (*t.shape[:-1], t.shape[-1] // 2)
    types = {**NUMPY, **SMALL_FLOATS, **dict.fromkeys(PACKED, "uint8")}
    return "cuda:0", f"torch.{types[t.dtype]}", shape


def test_load_file_loads_and_attaches_every_dtype(model, client_of, framework, simulation):
    mounted, checkpoint = model
    client = client_of(framework)
    client.do("arrays = load_file(mount, 'cuda:0', kind)", mount=mounted.path)
    assert client.tell("list(arrays)") == [t.name for t in checkpoint]
    told = client.tell("{n: bytes_on_device(array) for n, array in arrays.items()}")
    assert told == {t.name: t.data for t in checkpoint}
    told = client.tell(f"{{n: {DESCRIBE[framework]} for n, array in arrays.items()}}")
    for t in checkpoint:
        device, kind, shape = wanted(t, framework)
        assert told[t.name] == (device, kind or told[t.name][1], shape), t.name
    assert imports(simulation) == leases(mounted) == 1


def test_attach_gives_the_same_as_load_file(model, client_of, framework):
    mounted, checkpoint = model
    Mount(mounted).load("cuda:0", "*")
    client = client_of(framework)
    client.do("mount = Mount(mount)", mount=mounted.path)
    for t in checkpoint:
        client.do("array = mount.attach('cuda:0', name, kind)", name=t.name)
        assert client.tell("bytes_on_device(array)") == t.data, t.name
        device, kind, shape = wanted(t, framework)
        told = client.tell(DESCRIBE[framework])
        assert told == (device, kind or told[1], shape), t.name


def test_types_are_numpys_where_numpy_has_them(model, client_of):
    mounted, checkpoint = model
    client = client_of("cai")
    client.do("import numpy; arrays = load_file(mount, 'cuda:0', 'cai')", mount=mounted.path)
    typestr = "numpy.dtype(arrays[name].__cuda_array_interface__['typestr']).name"
    for dtype, name in NUMPY.items():
        assert client.tell(typestr, name=f"{dtype}.row") == name


def test_the_interface_is_version_3_and_waits_for_no_stream(model, client_of):
    mounted, _ = model
    client = client_of("cai")
    client.do("a = load_file(mount, 'cuda:0', kind)['F32.matrix']", mount=mounted.path)
    assert client.tell("a.__cuda_array_interface__ == " + (
        "{'version': 3, 'shape': (3, 8), 'typestr': '<f4', 'strides': None, 'stream': None, "
        "'data': (a.pointer, False)}"
    ))  # fmt: skip
    assert client.tell("(a.name, a.dtype, a.shape, a.nbytes)") == ("F32.matrix", "F32", (3, 8), 96)
    assert client.tell("repr(a)") == "<CudaArray 'F32.matrix' F32 [3, 8] cuda:0>"


def test_all_processes_see_one_memory(model, client_of, simulation):
    mounted, checkpoint = model
    clients = [client_of("cai") for _ in range(3)]
    for client in clients:
        client.do("arrays = load_file(mount, 'cuda:0', 'cai')", mount=mounted.path)
    assert imports(simulation) == leases(mounted) == 3
    clients[0].do("import ctypes; ctypes.memset(arrays['U8.row'].pointer, 7, 5)")
    for client in clients:
        assert client.tell("bytes_on_device(arrays['U8.row'])") == b"\7" * 5
    with pytest.raises(CommandError, match="U8.row.*differs"):
        Mount(mounted).verify("cuda:0")


def test_tensors_of_one_slab_share_its_opening_and_descriptor(model, client_of, simulation):
    mounted, _ = model
    Mount(mounted).load("cuda:0", "*")
    client = client_of("cai")
    client.do("mount = Mount(path); other = Mount(path)", path=mounted.path)
    client.do("a = mount.attach('cuda:0', 'F32.row', kind)")
    client.do("b = mount.attach('cuda:0', 'F64.row', kind)")
    client.do("c = other.attach('cuda:0', 'F32.row', kind)")
    client.do("d = load_file(mount.path, 'cuda:0', kind)")
    assert client.tell("a.pointer == c.pointer == d['F32.row'].pointer != b.pointer")
    assert len(client.tell("open_files(mount.path)")) == 1
    assert simulation.counters()["handles_opened"] == 1
    assert leases(mounted) == 1


@pytest.fixture
def two_slabs(folder, gpu_mounting):
    checkpoint = write(folder / "m.safetensors", [tensor(n, "F32", (4,)) for n in "abcd"])
    mounted = gpu_mounting(checkpoint.path)
    for pattern in "[ab]", "[cd]":
        Mount(mounted).load("cuda:0", pattern)
    return mounted, checkpoint


def test_unload_of_what_is_attached_names_the_holders(two_slabs, client_of):
    mounted, _ = two_slabs
    first, second = client_of("cai"), client_of("cai")
    for client, name in (first, "a"), (second, "b"):
        client.do("array = Mount(mount).attach('cuda:0', n, kind)", mount=mounted.path, n=name)
    mount = Mount(mounted)
    with pytest.raises(CommandError) as caught:
        mount.unload("cuda:0", "a")
    assert caught.value.errno == errno.EBUSY
    assert str(first.pid) in caught.value.strerror and str(second.pid) in caught.value.strerror
    mount.unload("cuda:0", "[cd]")  # another slab
    assert first.end() == 0
    with pytest.raises(CommandError, match=str(second.pid)):
        mount.unload("cuda:0", "*")
    second.do("del array")
    mount.unload("cuda:0", "*")
    assert leases(mounted) == 0


def test_load_file_opens_each_slab_once(two_slabs, client_of, simulation):
    mounted, checkpoint = two_slabs
    client = client_of("cai")
    client.do("arrays = load_file(mount, 'cuda:0', kind)", mount=mounted.path)
    assert client.tell("{n: bytes_on_device(a) for n, a in arrays.items()}") == {
        t.name: t.data for t in checkpoint
    }
    assert simulation.counters()["handles_opened"] == leases(mounted) == 2
    assert client.tell("open_files(mount)") == [
        ".devices/cuda:0/slabs/1", ".devices/cuda:0/slabs/2",
    ]  # fmt: skip
    client.do("del arrays['a'], arrays['b']")
    Mount(mounted).unload("cuda:0", "[ab]")
    client.do("arrays = load_file(mount, 'cuda:0', kind)")
    assert client.tell("bytes_on_device(arrays['a'])") == checkpoint["a"].data
    assert client.tell("open_files(mount)") == [
        ".devices/cuda:0/slabs/2", ".devices/cuda:0/slabs/3",
    ]  # fmt: skip


def test_all_shards_and_names_of_any_kind(folder, gpu_mounting, client_of):
    shards = [[tensor(n) for n in names] for names in (["a/b", ""], ["n" * 600, "a\0b", "名前"])]
    index, written = write_sharded(folder, shards)
    mounted = gpu_mounting(index)
    client = client_of("cai")
    client.do("arrays = load_file(mount, 'cuda:1', kind)", mount=mounted.path)
    told = client.tell("{name: bytes_on_device(array) for name, array in arrays.items()}")
    assert told == {t.name: t.data for shard in written for t in shard}
    client.do("mount = Mount(mount)")
    for name in told:
        client.do("array = mount.attach('cuda:1', name, kind)", name=name)
        assert client.tell("bytes_on_device(array)") == told[name]


def test_a_checkpoint_in_a_mounted_folder(folder, gpu_mounting, client_of):
    (folder / "models").mkdir()
    written = [write(folder / f"models/{n}.safetensors", [tensor(n)]) for n in "xy"]
    mounted = gpu_mounting(folder / "models")
    client = client_of("cai")
    for checkpoint in written:
        path = mounted / f"{checkpoint.path.stem}.tensors"
        client.do("arrays = load_file(path, 'cuda:0', kind)", path=path)
        told = client.tell("{name: bytes_on_device(array) for name, array in arrays.items()}")
        assert told == {t.name: t.data for t in checkpoint}


def test_empty_tensors_need_no_memory(folder, gpu_mounting, client_of, framework, simulation):
    shapes = [(0, 4), (3, 0), (0,)]
    mounted = gpu_mounting(
        write(folder / "m", [tensor(f"{i}", "F32", s) for i, s in enumerate(shapes)]).path
    )
    client = client_of(framework)
    client.do("arrays = load_file(mount, 'cuda:1', kind)", mount=mounted.path)
    assert client.tell("[tuple(a.shape) for a in arrays.values()]") == shapes
    assert {math.prod(s) for s in shapes} == {0}
    assert simulation.counters()["contexts_created"] == 0


def test_what_is_not_loaded_says_how_to_load_it(model, client_of):
    mounted, _ = model
    client = client_of("cai")
    with pytest.raises(Raised) as caught:
        client.do("Mount(path).attach('cuda:0', 'U8.row')", path=mounted.path)
    assert (caught.value.kind, caught.value.errno) == ("MountError", errno.ENOENT)
    assert str(caught.value) == (
        f"{mounted.path}: tensor 'U8.row' is not loaded on cuda:0; load it first: "
        f"Mount({str(mounted.path)!r}).load('cuda:0', names=['U8.row'])"
    )


def test_slabs_that_go_while_load_file_looks_are_loaded_again(two_slabs, client_of, simulation):
    mounted, checkpoint = two_slabs
    client = client_of("cai")
    client.do(
        "import safetensorfs.cuda as cuda; numbers, first = cuda.slab_numbers, [True]\n"
        "def listed(folder, device):\n"
        "    found = numbers(folder, device)\n"
        "    if first: first.clear(); Mount(folder).unload(device, '[cd]')\n"
        "    return found\n"
        "cuda.slab_numbers = listed; arrays = load_file(path, 'cuda:0', kind)",
        path=mounted.path,
    )
    told = client.tell("{name: bytes_on_device(array) for name, array in arrays.items()}")
    assert told == {t.name: t.data for t in checkpoint}
    assert simulation.counters()["handles_opened"] == 2


def test_tensors_that_never_stay_loaded(model, client_of):
    mounted, _ = model
    client = client_of("cai")
    client.do("import safetensorfs.cuda as cuda; cuda.control.run = lambda *words: None")
    with pytest.raises(Raised) as caught:
        client.do("load_file(path, 'cuda:0', kind)", path=mounted.path)
    assert (caught.value.kind, caught.value.errno) == ("MountError", errno.EAGAIN)
    assert re.fullmatch(
        rf"{mounted.path}: tensor 'BF16.matrix' and \d+ more are unloaded from cuda:0 as soon as "
        "they are loaded; by whom\\?",
        str(caught.value),
    )


def test_what_does_not_fit_is_the_daemons_sentence(model, client_of, simulation):
    mounted, _ = model
    simulation.configure(oom_at=1)
    client = client_of("cai")
    with pytest.raises(Raised) as caught:
        client.do("load_file(path, 'cuda:0', kind)", path=mounted.path)
    assert (caught.value.kind, caught.value.errno) == ("CommandError", errno.ENOMEM)


def test_the_default_framework_is_the_first_that_is_installed(model, client_of):
    mounted, _ = model
    client = client_of("cp")
    client.do("import sys; sys.modules['torch'] = None")
    client.do("array = load_file(path, 'cuda:0')['F32.row']", path=mounted.path)
    assert client.tell("type(array).__module__") == "cupy"
    client.do("sys.modules['cupy'] = None; array = load_file(path, 'cuda:0')['F32.row']")
    assert client.tell("type(array).__name__") == "CudaArray"


def test_the_default_framework_is_pytorch(model, client_of):
    pytest.importorskip("torch")
    mounted, _ = model
    client = client_of("pt")
    client.do("array = load_file(path, 'cuda:0')['F32.row']", path=mounted.path)
    assert client.tell("type(array).__name__") == "Tensor"


def test_dtypes_that_this_version_does_not_know(client_of, framework):
    client = client_of(framework)
    client.do("from safetensorfs.cuda import FRAMEWORKS")
    tensor_ = {"name": "a", "dtype": "F12", "shape": [2], "nbytes": 3}
    with pytest.raises(Raised, match=r"^tensor 'a', F12 \[2\]: .*knows no dtype F12"):
        client.do("FRAMEWORKS[kind]().make(t, 0, 0, None)", t=tensor_)

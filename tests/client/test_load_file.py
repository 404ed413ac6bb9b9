"""load_file() gives every tensor, on the source's own pages, whatever has become of the source."""

import os
import sys
import warnings

import numpy
import pytest

import safetensorfs
from checkpoints import Tensor, blob, every_dtype, tensor, write, write_sharded
from daemon import Mount, scratch
from expected import NUMPY, PACKED, SMALL_FLOATS, bytes_of, mappings_of, open_descriptors
from safetensorfs import load_file

FRAMEWORKS = ["np", "pt"]


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    if request.param == "pt":
        pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield request.param


@pytest.fixture(scope="module", params=range(8), ids=lambda residue: f"data at {residue} mod 8")
def small(request):
    with scratch() as folder:
        checkpoint = write(
            folder / "m.safetensors", every_dtype(request.param), residue=request.param
        )
        with Mount(checkpoint.path) as mounted:
            yield mounted, checkpoint


def check(arrays, tensors):
    tensors = list(tensors)
    assert set(arrays) == {t.name for t in tensors}
    for t in tensors:
        assert bytes_of(arrays[t.name]) == t.data, t.name


def test_numpy_arrays_have_the_type_and_shape_of_the_header(small):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    mounted, checkpoint = small
    arrays = load_file(mounted, framework="np")
    check(arrays, checkpoint)
    for t in checkpoint:
        array = arrays[t.name]
        assert not array.flags.writeable
        if t.dtype in PACKED:
            assert (array.dtype, array.shape) == (numpy.uint8, (len(t.data),))
        elif t.dtype in SMALL_FLOATS:
            wanted = numpy.dtype(getattr(ml_dtypes, SMALL_FLOATS[t.dtype]))
            assert (array.dtype, array.shape) == (wanted, t.shape)
        else:
            assert (array.dtype, array.shape) == (numpy.dtype(NUMPY[t.dtype]), t.shape)


def test_without_ml_dtypes_small_floats_are_what_npy_files_hold(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    mounted, checkpoint = small
    arrays = load_file(mounted)
    check(arrays, checkpoint)
    for t in checkpoint:
        of_file = numpy.load(mounted / f".npy/{t.name}.npy")
        assert (arrays[t.name].dtype, arrays[t.name].shape) == (of_file.dtype, of_file.shape)


def test_pytorch_tensors_have_the_type_and_shape_of_the_header(small):
    torch = pytest.importorskip("torch")
    mounted, checkpoint = small
    tensors = load_file(mounted, framework="pt")
    check(tensors, checkpoint)
    for t in checkpoint:
        made = tensors[t.name]
        if t.dtype == "F4" and t.shape[-1] % 2 == 0:
            assert made.dtype == torch.float4_e2m1fn_x2
            assert tuple(made.shape) == (*t.shape[:-1], t.shape[-1] // 2)
        elif t.dtype in PACKED:
            assert (made.dtype, tuple(made.shape)) == (torch.uint8, (len(t.data),))
        else:
            wanted = getattr(torch, {**NUMPY, **SMALL_FLOATS}[t.dtype])
            assert (made.dtype, tuple(made.shape)) == (wanted, t.shape)
        assert made.untyped_storage().nbytes() == len(t.data)


def test_pytorch_and_the_reference_agree(folder, mounting):
    torch = pytest.importorskip("torch")
    reference = pytest.importorskip("safetensors.torch")
    tensors = [t for t in every_dtype() if t.dtype not in PACKED]
    checkpoint = write(folder / "m.safetensors", tensors)
    ours, theirs = (
        load_file(mounting(checkpoint.path), framework="pt"),
        reference.load_file(checkpoint.path),
    )
    for name, wanted in theirs.items():
        assert ours[name].dtype == wanted.dtype and ours[name].shape == wanted.shape
        assert torch.equal(
            ours[name].reshape(-1).view(torch.uint8), wanted.reshape(-1).view(torch.uint8)
        )


def test_odd_f4_is_packed_bytes(folder, mounting, framework):
    checkpoint = write(folder / "m.safetensors", [tensor("odd", "F4", (2, 3))])
    array = load_file(mounting(checkpoint.path), framework=framework)["odd"]
    assert str(array.dtype).endswith("uint8") and tuple(array.shape) == (3,)
    assert bytes_of(array) == checkpoint["odd"].data


def test_arithmetic_works_at_unaligned_offsets(folder, mounting, framework):
    values = numpy.arange(1000, dtype="<f8").reshape(10, 100)
    x = Tensor("x", "F64", values.shape, values.tobytes())
    checkpoint = write(folder / "m.safetensors", [blob("pad", b"1"), x])
    assert checkpoint.offsets["x"] % 8 == 1
    array = load_file(mounting(checkpoint.path), framework=framework)["x"]
    assert float(array.sum()) == values.sum()
    assert float((array @ array.T).sum()) == (values @ values.T).sum()


def test_the_framework_is_numpy_unless_named(folder, mounting):
    pytest.importorskip("torch")
    checkpoint = write(folder / "m.safetensors", [tensor("a")])
    assert type(load_file(mounting(checkpoint.path))["a"]) is numpy.ndarray


def test_one_mapping_of_the_source_and_one_request_to_the_mount_serve_all(
    folder, mounting, framework
):
    checkpoint = write(folder / "m.safetensors", (tensor(f"t{i}") for i in range(500)))
    mounted = mounting(checkpoint.path)
    load_file(mounted, framework=framework)  # imports what it needs
    opened, listening = [], [True]

    def listen(event, arguments):
        if listening and event in ("open", "os.listdir", "os.scandir"):
            opened.append(os.fspath(arguments[0]))

    sys.addaudithook(listen)
    arrays = load_file(mounted, framework=framework)
    listening.clear()
    assert opened == [str(mounted / ".index.json"), str(checkpoint.path)]
    (protection,) = mappings_of(checkpoint.path)
    assert protection == {"np": "r--s", "pt": "rw-p"}[framework]
    check(arrays, checkpoint)


def test_what_is_written_to_a_tensor_stays_in_the_process(folder, mounting):
    pytest.importorskip("torch")
    checkpoint = write(folder / "m.safetensors", [tensor("a", "F32", (4096,))])
    mounted = mounting(checkpoint.path)
    tensors = load_file(mounted, framework="pt")
    tensors["a"].zero_()
    assert not tensors["a"].any()
    check(load_file(mounted, framework="pt"), checkpoint)
    assert checkpoint.path.read_bytes().endswith(checkpoint["a"].data)


def test_writing_to_a_numpy_array_is_refused(folder, mounting):
    checkpoint = write(folder / "m.safetensors", [tensor("a", "F32", (4,))])
    array = load_file(mounting(checkpoint.path))["a"]
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True


def test_mappings_and_descriptors_end_with_the_last_view(folder, mounting, framework):
    checkpoint = write(folder / "m.safetensors", [tensor("a", "F32", (4, 4)), tensor("b")])
    mounted = mounting(checkpoint.path)
    load_file(mounted, framework=framework)
    before = open_descriptors()
    arrays = load_file(mounted, framework=framework)
    view = arrays["a"][1:]
    del arrays
    assert len(mappings_of(checkpoint.path)) == 1
    assert bytes_of(view) == checkpoint["a"].data[16:]
    del view
    assert mappings_of(checkpoint.path) == []
    assert open_descriptors() == before


def test_arrays_outlive_the_mount_and_the_file(folder, mounting, framework):
    checkpoint = write(folder / "m.safetensors", every_dtype())
    mounted = mounting(checkpoint.path)
    arrays = load_file(mounted, framework=framework)
    mounted.unmount()
    checkpoint.path.unlink()
    check(arrays, checkpoint)


def test_shards_are_mapped_each_once(folder, mounting, framework):
    index, shards = write_sharded(folder, [every_dtype(), [tensor("x", seed=1), tensor("y")]])
    arrays = load_file(mounting(index), framework=framework)
    check(arrays, [t for shard in shards for t in shard])
    assert [len(mappings_of(shard.path)) for shard in shards] == [1, 1]


def test_a_checkpoint_of_a_mounted_folder(folder, mounting, framework):
    checkpoint = write(folder / "m.safetensors", every_dtype())
    write(folder / "other.safetensors", [tensor("z")])
    check(load_file(mounting(folder) / "m.tensors", framework=framework), checkpoint)


def test_no_tensors_at_all(folder, mounting, framework):
    assert load_file(mounting(write(folder / "m.safetensors", []).path), framework=framework) == {}


def test_strange_names_come_as_they_are(folder, mounting):
    names = ["", ".", "..", "a/b", "a\0b", "%41", "new\nline", "x" * 1000, "名前", "__metadata__x"]
    checkpoint = write(folder / "m.safetensors", [tensor(name) for name in names])
    check(load_file(os.fsencode(mounting(checkpoint.path))), checkpoint)


def replace(path, *tensors):
    new = path.with_name("new")
    write(new, tensors)
    os.replace(new, path)


def test_a_source_that_was_replaced_is_read_through_the_mount(folder, mounting, framework):
    checkpoint = write(folder / "m.safetensors", every_dtype(3), {"format": "pt"}, residue=3)
    mounted = mounting(checkpoint.path)
    replace(checkpoint.path, tensor("something else"))
    check(load_file(mounted, framework=framework), checkpoint)
    assert mappings_of(checkpoint.path) == []


def test_a_source_whose_path_leads_nowhere_is_read_through_the_mount(folder, mounting, framework):
    checkpoint = write(folder / "m.safetensors", every_dtype(5), residue=5)
    mounted = mounting(checkpoint.path)
    checkpoint.path.rename(folder / "elsewhere")
    check(load_file(mounted, framework=framework), checkpoint)


def test_a_replaced_source_of_the_same_size_and_time_is_noticed(folder, mounting):
    checkpoint = write(folder / "m.safetensors", [tensor("a", seed=1)])
    mounted, before = mounting(checkpoint.path), checkpoint.path.stat()
    replace(checkpoint.path, tensor("a", seed=2))
    os.utime(checkpoint.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert checkpoint.path.stat().st_size == before.st_size
    check(load_file(mounted), checkpoint)


def test_only_the_shard_that_was_replaced_is_read_through_the_mount(folder, mounting, framework):
    index, shards = write_sharded(
        folder, [[tensor("a"), tensor("b", "F64", (3,))], every_dtype(), [tensor("c")]]
    )
    mounted = mounting(index)
    replace(shards[1].path, tensor("F32.matrix", "F32", (3, 8)))
    arrays = load_file(mounted, framework=framework)
    check(arrays, [t for shard in shards for t in shard])
    assert [len(mappings_of(shard.path)) for shard in shards] == [1, 0, 1]


def test_a_source_changed_in_place_is_refused(folder, mounting):
    checkpoint = write(folder / "m.safetensors", [tensor("a")])
    mounted = mounting(checkpoint.path)
    with open(checkpoint.path, "ab") as file:
        file.write(b"more")
    with pytest.raises(safetensorfs.MountError) as caught:
        load_file(mounted)
    assert str(caught.value) == (
        f"{mounted.path}: a source was changed in place since it was mounted (.status says "
        "which): unmount and mount again"
    )


def test_shapes_that_a_framework_cannot_hold(folder, mounting):
    torch = pytest.importorskip("torch")
    shapes = {"wide": (0, 1 << 61, 2), "wider": (0, 1 << 62, 8)}
    for name, shape in shapes.items():
        mounted = mounting(write(folder / name, [tensor(name, "F32", shape)]).path)
        sentence = rf"tensor '{name}', F32 \[0, .*\]: NumPy cannot hold it: array is too big"
        with pytest.raises(ValueError, match=sentence):
            load_file(mounted)
        if name == "wide":
            made = load_file(mounted, framework="pt")[name]
            assert (made.dtype, made.shape) == (torch.float32, shape)
        else:
            with pytest.raises(ValueError, match=r"'wider', .*: PyTorch cannot hold it: Stride"):
                load_file(mounted, framework="pt")

"""An attached tensor is the loaded one, and leased for as long as something of it lives."""

import errno
import os

import pytest

from checkpoints import blob, every_dtype, tensor, write
from daemon import output_of
from expected import bytes_of, environment, mappings_of, open_descriptors, python
from safetensorfs import CommandError, Mount, MountError, load_file

FRAMEWORKS = ["np", "pt"]


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    if request.param == "pt":
        pytest.importorskip("torch")
    return request.param


@pytest.fixture
def model(folder, mounting):
    checkpoint = write(folder / "m.safetensors", every_dtype(3), residue=3)
    mounted = mounting(checkpoint.path)
    mount = Mount(mounted)
    mount.load("cpu", "*")
    return mount, checkpoint


def leases(mount):
    return mount.devices()["cpu"]["leases"]


def test_every_dtype(model, framework):
    mount, checkpoint = model
    arrays = load_file(mount.path, framework=framework)
    for t in checkpoint:
        array = mount.attach("cpu", t.name, framework)
        assert bytes_of(array) == t.data
        wanted = arrays[t.name]
        assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape), t.name


def test_it_lies_on_the_source_and_is_leased_until_its_last_view_dies(model, framework):
    mount, checkpoint = model
    before = open_descriptors()
    array = mount.attach("cpu", "F32.matrix", framework)
    assert len(mappings_of(checkpoint.path)) == 1
    assert leases(mount) == 1
    view = array[1:]
    del array
    assert leases(mount) == 1
    assert bytes_of(view) == checkpoint["F32.matrix"].data[32:]
    del view
    mount.unload("cpu", "F32.matrix")
    assert leases(mount) == 0
    assert mappings_of(checkpoint.path) == []
    assert open_descriptors() == before


def test_unload_of_what_is_attached_names_the_holder(model):
    mount, _ = model
    array = mount.attach("cpu", "F64.row")
    with pytest.raises(CommandError) as caught:
        mount.unload("cpu", "F64.row")
    assert caught.value.errno == errno.EBUSY
    assert str(os.getpid()) in caught.value.strerror
    assert array.any()
    del array
    mount.unload("cpu", "F64.row")


def test_what_is_not_loaded_says_how_to_load_it(model):
    mount, _ = model
    mount.unload("cpu", "U8.row")
    with pytest.raises(MountError) as caught:
        mount.attach("cpu", "U8.row")
    assert caught.value.errno == errno.ENOENT
    assert str(caught.value) == (
        f"{mount.path}: tensor 'U8.row' is not loaded on cpu; load it first: "
        f"Mount({mount.path!r}).load('cpu', names=['U8.row'])"
    )


def test_a_tensor_that_does_not_exist(model):
    mount, _ = model
    with pytest.raises(MountError) as caught:
        mount.attach("cpu", "nonsense")
    assert str(caught.value) == f"{mount.path}: holds no tensor 'nonsense'"


def test_empty_tensors_are_made_and_hold_no_lease(model, framework):
    mount, _ = model
    array = mount.attach("cpu", "F32.empty", framework)
    assert tuple(array.shape) == (0, 4)
    mount.unload("cpu", "F32.empty")


def test_failure_leaves_no_lease(model):
    mount, _ = model
    before = open_descriptors()
    with pytest.raises(ValueError):
        mount.attach("cpu", "F32.row", "tf")
    assert open_descriptors() == before


def test_a_replaced_source_is_attached_through_the_mount(folder, mounting, framework):
    checkpoint = write(folder / "m.safetensors", [blob("pad", b"1"), tensor("a", "F32", (9000,))])
    mount = Mount(mounting(checkpoint.path))
    mount.load("cpu", "*")
    write(folder / "new", [tensor("other")])
    os.replace(folder / "new", checkpoint.path)
    array = mount.attach("cpu", "a", framework)
    assert bytes_of(array) == checkpoint["a"].data
    assert mappings_of(checkpoint.path) == []


def test_close_counts_the_survivors_and_leaves_them_alive(model):
    mount, checkpoint = model
    kept = [mount.attach("cpu", name) for name in ("F32.row", "F64.row", "I8.row")]
    del kept[0]
    assert mount.close() == 2
    del kept[0]
    assert mount.close() == 1
    other = Mount(mount.path)
    assert leases(other) == 1
    assert bytes_of(kept[0]) == checkpoint["I8.row"].data
    kept.clear()
    assert mount.close() == 0
    other.unload("cpu", "I8.row")
    with pytest.raises(ValueError, match="is closed"):
        mount.attach("cpu", "F32.row")


def test_a_lease_stays_with_the_parent_when_it_forks(model):
    mount, checkpoint = model
    array = mount.attach("cpu", "F32.row")
    asked, answer = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # lives on with the array, without the lease
        status = 1
        try:
            os.read(asked[0], 1)
            os.write(answer[1], array.tobytes())
            status = mount.close()
        finally:
            os._exit(status)
    try:
        del array
        mount.unload("cpu", "F32.row")
        os.write(asked[1], b"x")
        assert os.read(answer[0], 100) == checkpoint["F32.row"].data
    finally:
        for descriptor in (*asked, *answer):
            os.close(descriptor)
        assert os.waitpid(child, 0)[1] == 0


def test_a_child_that_ends_does_not_end_the_lease(model):
    mount, _ = model
    array = mount.attach("cpu", "F32.row")
    child = os.fork()
    if child == 0:
        del array
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert leases(mount) == 1
    with pytest.raises(CommandError):
        mount.unload("cpu", "F32.row")


def test_nothing_is_to_be_done_at_exit(model, framework):
    mount, _ = model
    script = (
        "import sys; from safetensorfs import Mount\n"
        "mount = Mount(sys.argv[1])\n"
        "kept = [mount.attach('cpu', name, sys.argv[2]) for name in ('F32.row', 'I8.row')]\n"
        "mount.kept = kept; kept.append(kept)\n"
    )
    output_of(*python("-c", script, mount.path, framework), env=environment())
    mount.unload("cpu", "*.row")

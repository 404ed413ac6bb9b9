"""A tensor file holds the tensor's bytes, however it is read."""

import concurrent.futures
import hashlib
import mmap
import os
import random
import shutil
import subprocess

import ml_dtypes
import numpy
import pytest

from checkpoints import blob, every_dtype, tensor, write
from daemon import Mount, output_of, run, scratch

MIB = 1 << 20
LARGE = [5, MIB - 1, 2 * MIB + 17, 1, 3 * MIB, 4097, 0, MIB + 3]

NUMPY_TYPES = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "I16": "<i2", "U16": "<u2", "F16": "<f2",
    "I32": "<i4", "U32": "<u4", "F32": "<f4", "C64": "<c8", "F64": "<f8", "I64": "<i8",
    "U64": "<u8", "BF16": "|V2", "F8_E5M2": "|V1", "F8_E4M3": "|V1", "F8_E8M0": "|V1",
    "F8_E4M3FNUZ": "|V1", "F8_E5M2FNUZ": "|V1", "F4": "|u1", "F6_E2M3": "|u1", "F6_E3M2": "|u1",
}  # fmt: skip
ML_TYPES = {
    "BF16": ml_dtypes.bfloat16,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}


@pytest.fixture(scope="module", params=range(8), ids=lambda residue: f"data at {residue} mod 8")
def small(request):
    with scratch() as folder:
        checkpoint = write(
            folder / "m.safetensors", every_dtype(request.param), residue=request.param
        )
        with Mount(checkpoint.path) as mounted:
            yield mounted, checkpoint


@pytest.fixture
def large(folder, mount):
    """Tensors that begin, end and continue across multiples of 1 MiB, none of them aligned."""
    tensors = [
        blob(f"t{number}", random.Random(number).randbytes(size))
        for number, size in enumerate(LARGE)
    ]
    checkpoint = write(folder / "large.safetensors", tensors, residue=3)
    return mount(checkpoint.path), checkpoint


def test_read_gives_the_bytes_of_every_dtype_at_every_residue(small):
    mounted, checkpoint = small
    for tensor in checkpoint:
        assert (mounted / tensor.name).read_bytes() == tensor.data, tensor.name


def test_npy_files_load_as_the_dtype_and_shape_of_the_tensor(small):
    mounted, checkpoint = small
    for tensor in checkpoint:
        path = mounted / f".npy/{tensor.name}.npy"
        assert (os.path.getsize(path) - len(tensor.data)) % 64 == 0, tensor.name
        for mode in (None, "r"):
            array = numpy.load(path, mmap_mode=mode)
            assert array.dtype == numpy.dtype(NUMPY_TYPES[tensor.dtype]), tensor.name
            assert array.tobytes() == tensor.data, tensor.name
            if tensor.dtype not in ("F4", "F6_E2M3", "F6_E3M2"):
                assert array.shape == tensor.shape, tensor.name
            if tensor.dtype in ML_TYPES:
                view = array.view(ML_TYPES[tensor.dtype])
                assert view.shape == tensor.shape
                assert view.tobytes() == tensor.data


def test_npy_files_are_numpys_own_spelling(small):
    mounted, checkpoint = small
    for tensor in checkpoint:
        with open(mounted / f".npy/{tensor.name}.npy", "rb") as file:
            version = numpy.lib.format.read_magic(file)
            assert version in ((1, 0), (2, 0), (3, 0))
            _, fortran_order, _ = numpy.lib.format.read_array_header_1_0(file)
            assert not fortran_order
            assert file.read() == tensor.data


def test_read_crosses_megabytes(large):
    mounted, checkpoint = large
    for tensor in checkpoint:
        assert (mounted / tensor.name).read_bytes() == tensor.data


def test_all_safetensors_is_the_source(large):
    mounted, checkpoint = large
    output_of("cmp", mounted / ".all.safetensors", checkpoint.path)


def test_pread_at_random_offsets(large):
    mounted, checkpoint = large
    chance = random.Random(1)
    for tensor in checkpoint:
        with open(mounted / tensor.name, "rb", buffering=0) as file:
            for _ in range(100):
                offset = chance.randrange(len(tensor.data) + 10)
                size = chance.choice([1, 2, 511, 4096, 70_001, 2 * MIB])
                assert os.pread(file.fileno(), size, offset) == tensor.data[offset:][:size]
            assert os.pread(file.fileno(), 10, len(tensor.data)) == b""
            assert os.pread(file.fileno(), 10, 1 << 60) == b""


def test_mmap_shared_and_private(large):
    mounted, checkpoint = large
    places = [(mounted / f".npy/{t.name}.npy", t) for t in checkpoint]
    places += [(mounted / t.name, t) for t in checkpoint if t.data]
    for path, tensor in places:
        with open(path, "rb") as file:
            with mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as shared:
                assert shared[:].endswith(tensor.data)
            private = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE)
            assert private[:].endswith(tensor.data)
            private[-1] = private[-1] ^ 0xFF
            private.close()
        assert path.read_bytes().endswith(tensor.data), "a private mapping was written through"
    with open(mounted / ".all.safetensors", "rb") as file:
        with mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as shared:
            assert shared[:] == checkpoint.path.read_bytes()


@pytest.mark.parametrize("block", [512, 4096, MIB])
def test_direct_descriptors_read_the_same(large, block):
    mounted, checkpoint = large
    page = mmap.mmap(-1, block)
    for tensor in checkpoint:
        descriptor = os.open(mounted / tensor.name, os.O_RDONLY | os.O_DIRECT)
        try:
            for offset in sorted({0, block, len(tensor.data) // block * block}):
                count = os.preadv(descriptor, [page], offset)
                assert page[:count] == tensor.data[offset:][:block], (tensor.name, offset)
        finally:
            os.close(descriptor)


def test_dd_with_iflag_direct(large):
    mounted, checkpoint = large
    for tensor in checkpoint:
        data = output_of(
            "dd", f"if={mounted / tensor.name}", "iflag=direct", "bs=1M", binary=True
        )
        assert data == tensor.data


def test_sendfile(large, folder):
    mounted, checkpoint = large
    for tensor in checkpoint:
        with open(mounted / tensor.name, "rb") as source, open(folder / "sent", "wb") as target:
            sent = 0
            while count := os.sendfile(target.fileno(), source.fileno(), sent, MIB):
                sent += count
        assert (folder / "sent").read_bytes() == tensor.data


def test_cp_and_a_pipe_through_sha256sum(large, folder):
    mounted, checkpoint = large
    for tensor in checkpoint:
        output_of("cp", mounted / tensor.name, folder / "copy")
        assert (folder / "copy").read_bytes() == tensor.data
        with subprocess.Popen(["cat", mounted / tensor.name], stdout=subprocess.PIPE) as cat:
            digest = output_of("sha256sum", stdin=cat.stdout).split()[0]
        assert digest == hashlib.sha256(tensor.data).hexdigest()
    shutil.copyfile(mounted / ".all.safetensors", folder / "copy")
    output_of("cmp", folder / "copy", checkpoint.path)


def test_sixteen_readers_at_once(large):
    mounted, checkpoint = large

    def reader(number):
        chance = random.Random(number)
        for _ in range(20):
            tensor = chance.choice(checkpoint.tensors)
            with open(mounted / tensor.name, "rb", buffering=0) as file:
                offset = chance.randrange(len(tensor.data) + 1)
                size = chance.randrange(1, MIB)
                if os.pread(file.fileno(), size, offset) != tensor.data[offset:][:size]:
                    return f"{tensor.name} at {offset}, {size} bytes"
        return None

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert list(pool.map(reader, range(16))) == [None] * 16


def test_sixteen_processes_read_one_tensor(large):
    mounted, checkpoint = large
    tensor = max(checkpoint, key=lambda t: len(t.data))
    readers = [
        subprocess.Popen(["sha256sum", mounted / tensor.name], stdout=subprocess.PIPE, text=True)
        for _ in range(16)
    ]
    digests = {reader.communicate()[0].split()[0] for reader in readers}
    assert digests == {hashlib.sha256(tensor.data).hexdigest()}


def test_a_source_longer_than_a_page_cache_window_reads_backwards(large):
    mounted, checkpoint = large
    tensor = max(checkpoint, key=lambda t: len(t.data))
    pieces = []
    with open(mounted / tensor.name, "rb", buffering=0) as file:
        for offset in reversed(range(0, len(tensor.data), 65_536)):
            pieces.append(os.pread(file.fileno(), 65_536, offset))
    assert b"".join(reversed(pieces)) == tensor.data


def test_a_file_of_no_tensors_mounts_and_is_whole(folder, mount):
    checkpoint = write(folder / "none.safetensors", [])
    mounted = mount(checkpoint.path)
    assert (mounted / ".all.safetensors").read_bytes() == checkpoint.path.read_bytes()
    assert run("ls", mounted).stdout == ""


def read_ahead_kb(mounted):
    os.stat(mounted / ".summary")
    device = os.stat(mounted).st_dev
    path = f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb"
    with open(path) as file:
        return int(file.read())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may")
def test_mounts_by_root_read_further_ahead(folder, mount):
    source = write(folder / "m.safetensors", [tensor("t")]).path
    assert read_ahead_kb(mount(source)) == 512
    assert read_ahead_kb(mount(source, other_user=True, options="allow_other")) == 128

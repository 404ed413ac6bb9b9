"""PyTorch makes CUDA tensors of pointers, on a machine without GPUs too, or says why not."""

import ctypes
import math

import pytest

torch = pytest.importorskip("torch")

from safetensorfs import torch_cuda  # noqa: E402
from safetensorfs.cuda_driver import DriverError  # noqa: E402
from safetensorfs.torch_cuda import TorchCudaTensors  # noqa: E402

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="PyTorch is built without CUDA")


class Slab:
    pass


@pytest.fixture
def arrays(monkeypatch):
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    return TorchCudaTensors()


def entry(dtype, shape, nbytes):
    return {"name": "t", "dtype": dtype, "shape": shape, "nbytes": nbytes}


@pytest.mark.parametrize(
    "dtype, shape, made",
    [
        ("F4", [3, 8], (torch.float4_e2m1fn_x2, (3, 4))),
        ("F4", [2, 3], (torch.uint8, (3,))),
        ("F4", [4], (torch.float4_e2m1fn_x2, (2,))),
        ("F6_E2M3", [2, 4], (torch.uint8, (6,))),
        ("F6_E3M2", [4], (torch.uint8, (3,))),
        ("BF16", [], (torch.bfloat16, ())),
        ("F8_E8M0", [1, 1], (torch.float8_e8m0fnu, (1, 1))),
    ],
)
def test_types_and_shapes(arrays, dtype, shape, made):
    bits = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BF16": 16, "F8_E8M0": 8}[dtype]
    nbytes = math.prod(shape) * bits // 8
    buffer = ctypes.create_string_buffer(nbytes)
    tensor, owner = arrays.make(entry(dtype, shape, nbytes), ctypes.addressof(buffer), 1, Slab())
    assert (tensor.dtype, tuple(tensor.shape)) == made
    assert tensor.is_contiguous() and str(tensor.device) == "cuda:1"
    assert tensor.data_ptr() == ctypes.addressof(buffer)
    assert owner is tensor.untyped_storage() and owner.nbytes() == nbytes


def test_tensors_without_elements_of_any_shape(arrays):
    for shape in [0], [0, 4], [4, 0, 3], [0, 1 << 61, 2]:
        tensor, _ = arrays.make(entry("F32", shape, 0), 0, 0, None)
        assert list(tensor.shape) == shape and tensor.is_contiguous() and tensor.data_ptr() == 0
    with pytest.raises(ValueError, match=r"^tensor 't', F32 \[0, .*\]: PyTorch cannot hold it: "):
        arrays.make(entry("F32", [0, 1 << 62, 8], 0), 0, 0, None)


def test_a_cuda_that_pytorch_cannot_use(monkeypatch):
    def init():
        raise RuntimeError("CUDA unknown error\nand what to do")

    monkeypatch.setattr(torch.cuda, "init", init)
    with pytest.raises(DriverError) as caught:
        TorchCudaTensors().make(entry("U8", [1], 1), 8, 0, Slab())
    assert str(caught.value) == f"PyTorch {torch.__version__} cannot use CUDA: CUDA unknown error"


def test_a_pytorch_without_cuda(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(ImportError) as caught:
        TorchCudaTensors()
    assert str(caught.value) == (
        f'framework="pt" on a cuda device needs a PyTorch built for CUDA, which '
        f'{torch.__version__} is not; framework="cp" and "cai" do without'
    )


@pytest.fixture
def older(monkeypatch, arrays):
    """A PyTorch that lacks the functions; as_tensor() is the real one's, but on the CPU."""
    monkeypatch.delattr(torch._C, "_construct_CUDA_Tensor_From_Storage_And_Metadata")
    given = []

    def as_tensor(owner, device):
        interface = owner.__cuda_array_interface__
        assert (interface["typestr"], interface["strides"]) == ("|u1", None)
        (nbytes,), (address, _) = interface["shape"], interface["data"]
        given.append((owner, device))
        memory = (ctypes.c_uint8 * nbytes).from_address(address)
        return torch.frombuffer(memory, dtype=torch.uint8)

    monkeypatch.setattr(torch, "as_tensor", as_tensor)
    return TorchCudaTensors(), given


@pytest.mark.parametrize(
    "dtype, shape, made",
    [
        ("F32", [2, 3], (torch.float32, (2, 3))),
        ("BF16", [], (torch.bfloat16, ())),
        ("F4", [3, 8], (torch.float4_e2m1fn_x2, (3, 4))),
        ("F6_E2M3", [2, 4], (torch.uint8, (6,))),
    ],
)
def test_by_the_interface_where_pytorch_lacks_the_functions(older, dtype, shape, made):
    arrays, given = older
    bits = {"F32": 32, "BF16": 16, "F4": 4, "F6_E2M3": 6}[dtype]
    nbytes = math.prod(shape) * bits // 8
    buffer, slab = ctypes.create_string_buffer(nbytes), Slab()
    slab.lease = type("Lease", (), {"alive": True})
    tensor, owner = arrays.make(entry(dtype, shape, nbytes), ctypes.addressof(buffer), 1, slab)
    assert (tensor.dtype, tuple(tensor.shape)) == made
    assert tensor.data_ptr() == ctypes.addressof(buffer)
    assert given == [(owner, torch.device("cuda:1"))] and owner._slab is slab


def test_by_the_interface_where_storages_are_made_anew(monkeypatch, arrays):
    """As before PyTorch 2.1: an object that dies early would let go of the memory."""
    assert torch_cuda._storages_last(torch)
    real = torch._C._construct_storage_from_data_pointer

    class Storage:
        """Another object than the tensor's."""

    def construct(*words):
        storage = Storage()
        storage.real = real(*words)
        return storage

    monkeypatch.setattr(torch._C, "_construct_storage_from_data_pointer", construct)
    set_ = torch.Tensor.set_
    monkeypatch.setattr(torch.Tensor, "set_", lambda t, s, *words: set_(t, s.real, *words))
    assert not torch_cuda._storages_last(torch)
    assert TorchCudaTensors()._make.__name__ == "_by_interface"

"""What the course says of a GPU, asked of a GPU: formats, TF32, pinned memory, kernels of the compiler."""

from helpers import (
    device_name,
    fp32_computed_as,
    fp32_precision,
    pick_device,
    rank_device,
    supports,
    why_no_compiler,
    written_kernels,
)
from helpers.core.precision import has_tf32

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.cuda
GPU = torch.device("cuda")
TF32_ERROR = 1e-5  # relative; FP32 products stay well below it, TF32's lie above


def product_error():
    torch.manual_seed(0)
    a, b = torch.randn(512, 512, device=GPU), torch.randn(512, 512, device=GPU)
    exact = a.double() @ b.double()
    return ((a @ b - exact).norm() / exact.norm()).item()


def convolution_error():
    torch.manual_seed(0)
    x, w = torch.randn(4, 64, 32, 32, device=GPU), torch.randn(64, 64, 3, 3, device=GPU)
    exact = F.conv2d(x.double(), w.double())
    return ((F.conv2d(x, w) - exact).norm() / exact.norm()).item()


def test_the_gpu_is_found_by_its_name():
    assert pick_device() == GPU
    assert rank_device() == torch.device("cuda", 0)
    assert device_name(GPU) == torch.cuda.get_device_name()


def test_formats_are_those_of_the_hardware():
    capability = torch.cuda.get_device_capability()
    assert supports(torch.float16, GPU)
    assert supports(torch.bfloat16, GPU) == (capability >= (8, 0))
    assert has_tf32(GPU) == (capability >= (8, 0))


@pytest.mark.silicon
@pytest.mark.parametrize("error", [product_error, convolution_error], ids=lambda f: f.__name__)
def test_tf32_is_where_it_was_asked_for_and_nowhere_else(error):
    before = fp32_precision()
    with fp32_computed_as("ieee"):
        assert error() < TF32_ERROR
    with fp32_computed_as("tf32"):
        assert (error() > TF32_ERROR) == has_tf32(GPU)
    assert fp32_precision() == before


@pytest.mark.silicon
@pytest.mark.parametrize(("what", "error"), [("matmuls", product_error), ("convolutions", convolution_error)])
def test_the_setting_that_is_printed_is_the_one_that_computes(what, error):
    assert (error() > TF32_ERROR) == (fp32_precision()[what] == "TF32" and has_tf32(GPU))


def test_copies_from_pinned_memory_arrive():
    host = torch.arange(2**22)
    pinned = host.pin_memory()
    assert pinned.is_pinned()
    assert not host.is_pinned()
    copy = pinned.to(GPU, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(copy.cpu(), host)
    with pytest.raises(RuntimeError, match="pin"):
        copy.pin_memory()


@pytest.mark.silicon
def test_the_compiler_writes_triton():
    if why_no_compiler():
        pytest.skip(why_no_compiler())
    (kernel,) = written_kernels(lambda x: torch.relu(x * 2 + 1), torch.randn(4096, device=GPU))
    assert kernel.startswith("def triton_")

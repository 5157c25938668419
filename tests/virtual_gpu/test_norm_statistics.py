"""Norms of 16-bit numbers: a program has the same peak dry and computed, and FP32 statistics, as on CUDA."""

from helpers.virtual_gpu.install import install, uninstall
from helpers.virtual_gpu.machine import Machine
from helpers.virtual_gpu.waits import Waits

import pytest
import torch
from torch import nn

NORMS = {
    "layer": (lambda: nn.LayerNorm(16), (4096, 16)),
    "layer, without weights": (lambda: nn.LayerNorm(16, elementwise_affine=False), (4096, 16)),
    "batch": (lambda: nn.BatchNorm2d(512), (4, 512, 2, 2)),
    "batch, evaluated": (lambda: nn.BatchNorm2d(512).eval(), (4, 512, 2, 2)),
    "group": (lambda: nn.GroupNorm(256, 512), (16, 512, 2, 2)),
    "instance": (lambda: nn.InstanceNorm2d(512), (16, 512, 2, 2)),
}


@pytest.fixture
def gpu():
    """Return a function that gives this process a GPU, dry or computed; it goes with the test."""

    def gpu(dry):
        install(Machine.named("a100-80gb"), Waits() if dry else None)

    yield gpu
    uninstall()


def trained(norm, shape, dtype):
    """Return the allocated peak and the gradients of one pass through a norm on the GPU."""
    torch.manual_seed(0)
    norm, x = norm().cuda().to(dtype), torch.randn(shape).cuda().to(dtype).requires_grad_()
    norm(x).float().square().mean().backward()
    return torch.cuda.max_memory_allocated(), [x.grad, *(p.grad for p in norm.parameters())]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_dry_and_computed_peaks_are_the_same(gpu, name, dtype):
    gpu(dry=True)
    dry, _ = trained(*NORMS[name], dtype)
    uninstall()
    gpu(dry=False)
    computed, gradients = trained(*NORMS[name], dtype)
    assert dry == computed
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_statistics_are_fp32(gpu):
    gpu(dry=False)
    x, weight = torch.randn(8, 16, device="cuda").bfloat16(), torch.ones(16, device="cuda").bfloat16()
    out, *statistics = torch.native_layer_norm(x, (16,), weight, weight, 1e-5)
    assert (out.dtype, [each.dtype for each in statistics]) == (torch.bfloat16, [torch.float32] * 2)
    _, *statistics = torch.native_batch_norm(x, weight, weight, None, None, True, 0.1, 1e-5)
    assert [each.dtype for each in statistics] == [torch.float32] * 2


def test_gradients_are_those_of_the_cpu(gpu):
    gpu(dry=False)
    for norm, shape in (NORMS["layer"], NORMS["batch"]):
        torch.manual_seed(1)
        on_cpu, on_gpu = norm().bfloat16(), norm().cuda().bfloat16()
        x = torch.randn(shape).bfloat16()
        for module, given in ((on_cpu, x), (on_gpu, x.cuda())):
            (module(given).float() ** 3).sum().backward()
        assert torch.equal(on_cpu.weight.grad, on_gpu.weight.grad.cpu())

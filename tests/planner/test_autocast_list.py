"""The planner's list of what autocast runs in FP32 on CUDA, held against PyTorch's own."""

from helpers.formats.autocast_rules import autocast_rule
from helpers.planner.simulate.cuda_kernels import _FP32, CudaKernels

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor


def probabilities(function):
    return lambda x, y: function(torch.log_softmax(x.float(), -1).to(x.dtype), x.argmax(1))


SPECIAL = {  # how to call those that take more than one tensor
    "layer_norm": lambda f: lambda x, y: f(x, (16,)),
    "rms_norm": lambda f: lambda x, y: f(x, (16,)),
    "group_norm": lambda f: lambda x, y: f(x, 4),
    "softmax": lambda f: lambda x, y: f(x, -1),
    "log_softmax": lambda f: lambda x, y: f(x, -1),
    "cumsum": lambda f: lambda x, y: f(x, -1),
    "cumprod": lambda f: lambda x, y: f(x, -1),
    "cross_entropy": lambda f: lambda x, y: f(x, y.argmax(1)),
    "nll_loss": probabilities,
    "kl_div": lambda f: lambda x, y: f(x, y, reduction="sum" if f is F.kl_div else 2),
    "pow": lambda f: lambda x, y: f(x, 3),
    "__pow__": lambda f: lambda x, y: f(x, 3),
    "__rpow__": lambda f: lambda x, y: f(x, 3),
} | dict.fromkeys(("mse_loss", "l1_loss", "smooth_l1_loss", "binary_cross_entropy_with_logits"), lambda f: f)


OWNERS = {"torch": torch, "F": F, "Tensor": Tensor}
LISTED = sorted(
    f"{owner}.{name}"
    for owner, place in OWNERS.items()
    for name in dir(place)
    if any(getattr(place, name) is function for function in _FP32)
    and name != "cosine_similarity"  # makes a tensor of its own, for which there is no GPU
)


def called(name):
    owner, _, function = name.partition(".")
    plain = getattr(OWNERS[owner], function)
    return SPECIAL.get(function, lambda f: lambda x, y: f(x))(plain)


@pytest.mark.parametrize("name", LISTED)
def test_pytorch_runs_it_in_fp32_too(name):
    assert autocast_rule(called(name), "cuda", torch.bfloat16) == "FP32"


def test_rms_norm_is_planned_as_this_pytorch_runs_it():
    listed = autocast_rule(called("F.rms_norm"), "cuda", torch.bfloat16) == "FP32"
    x = torch.rand(4, 16, dtype=torch.bfloat16)
    kernels = CudaKernels(torch.bfloat16)
    with kernels, kernels.autocast():
        assert F.rms_norm(x, (16,)).dtype == (torch.float32 if listed else torch.bfloat16)
    with CudaKernels(None):
        assert F.rms_norm(x, (16,)).dtype == torch.bfloat16

"""What autocast does to an operation: asked of PyTorch, for the CPU and for a GPU that is not there."""

from helpers.formats.autocast_rules import autocast_rule

import pytest
import torch
import torch.nn.functional as F


def image(x):
    return x.view(1, 1, 16, 16)


RULES = {  # operation: on the CPU, on CUDA
    "linear": (F.linear, "16 bits", "16 bits"),
    "convolution": (lambda x, y: F.conv2d(image(x), image(y)), "16 bits", "16 bits"),
    "relu": (lambda x, y: torch.relu(x), "follows", "follows"),
    "sum of two": (torch.add, "follows", "follows"),
    "layer norm": (lambda x, y: F.layer_norm(x, (16,)), "follows", "FP32"),
    "softmax": (lambda x, y: torch.softmax(x, -1), "follows", "FP32"),
    "mse loss": (F.mse_loss, "FP32", "FP32"),
    "dot": (lambda x, y: torch.dot(x.flatten(), y.flatten()), "follows", "widest"),
    "index_copy": (lambda x, y: x.index_copy(0, x.argmax(1), y), "widest", "follows"),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", RULES)
def test_rules(name, dtype):
    operation, on_cpu, on_cuda = RULES[name]
    assert (autocast_rule(operation, "cpu", dtype), autocast_rule(operation, "cuda", dtype)) == (on_cpu, on_cuda)


def test_the_callers_autocast_is_as_before():
    with torch.autocast("cpu", torch.float16):
        autocast_rule(torch.add, "cpu", torch.bfloat16)
        autocast_rule(torch.add, "cuda", torch.bfloat16)
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == torch.float16
    assert not torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cuda")


def test_an_operation_that_fails_says_so():
    with pytest.raises(RuntimeError):
        autocast_rule(lambda x, y: torch.dot(x, y), "cuda", torch.bfloat16)

"""In a dry run, convolutions return their channels in the order in which cuDNN would, which is also the CPU's."""

from helpers.virtual_gpu import virtual_gpu

import pytest
import torch
from torch import nn

LAYERS = {
    1: lambda: nn.Conv1d(4, 6, 3),
    2: lambda: nn.Conv2d(4, 6, 3),
    3: lambda: nn.Conv3d(4, 6, 3),
    "transposed": lambda: nn.ConvTranspose2d(4, 6, 3),
    "depthwise": lambda: nn.Conv2d(4, 4, 3, groups=4),
}
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def strides(kind, device, input_last, weight_last):
    """Of the output, and of the gradients of the input and the weight."""
    layer = LAYERS[kind]().to(device)
    x = torch.empty([2, 4, 9, 8, 7][: layer.weight.dim()], device=device)
    if kind == 1 and input_last:
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    elif input_last:
        x = x.to(memory_format=LAST[x.dim()])
    if weight_last and kind != 1:
        layer = layer.to(memory_format=LAST[x.dim()])
    out = layer(x.requires_grad_())
    given, of_weight = torch.autograd.grad(out, (x, layer.weight), torch.ones_like(out))
    return out.stride(), given.stride(), of_weight.stride()


@pytest.mark.parametrize("weight_last", [False, True])
@pytest.mark.parametrize("input_last", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
def test_channels_lie_where_they_would(kind, input_last, weight_last):
    on_cpu = strides(kind, "cpu", input_last, weight_last)
    with virtual_gpu("a100-80gb"):
        assert strides(kind, "cuda", input_last, weight_last) == on_cpu


def test_channels_at_the_end_cannot_be_viewed_as_if_they_came_first():
    with virtual_gpu("a100-80gb"), pytest.raises(RuntimeError, match="view size is not compatible"):
        nn.Conv2d(3, 8, 3).cuda().to(memory_format=torch.channels_last)(torch.empty(2, 3, 9, 9).cuda()).view(2, -1)

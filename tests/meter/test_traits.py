"""What is unusual about an operation, read off real ones."""

from dataclasses import replace

from helpers.meter.roofline.roofline import Roofline
from helpers.meter.roofline.traits import trait_of
from helpers.meter.work import works_of

import pytest
import torch
from torch import nn


def matmuls(tokens, width, out):
    """The three matmuls of a linear layer in BF16, with their traits by layout."""
    layer = nn.Linear(width, out, bias=False, dtype=torch.bfloat16)
    x = torch.randn(tokens, width, dtype=torch.bfloat16, requires_grad=True)
    works = works_of(lambda: layer(x).sum().backward())
    return {work.layout: trait_of(work) for work in works if work.kind == "matmul"}


def test_an_odd_vocabulary_makes_all_three_matmuls_unaligned():
    assert set(matmuls(16, 32, 257).values()) == {"unaligned"}


def test_the_number_of_tokens_aligns_nothing():
    assert set(matmuls(13, 32, 264).values()) == {None}


def convolutions(dtype=torch.bfloat16, channels_last=False, **sizes):
    """The traits of a convolution and of its backward pass."""
    layer = nn.Conv2d(16, padding=1, dtype=dtype, **{"out_channels": 16, "kernel_size": 3} | sizes)
    x = torch.randn(2, 16, 12, 12, dtype=dtype, requires_grad=True)
    if channels_last:
        layer, x = layer.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    works = works_of(lambda: layer(x).sum().backward())
    return {trait_of(work) for work in works if work.kind == "convolution"}


@pytest.mark.parametrize(("channels_last", "suffix"), [(False, ""), (True, " channels last")])
def test_a_filter_for_each_channel_is_depthwise(channels_last, suffix):
    assert convolutions(channels_last=channels_last, groups=16) == {f"depthwise{suffix}"}
    assert convolutions(channels_last=channels_last) == {suffix.strip() or None}
    assert convolutions(channels_last=channels_last, out_channels=1) == {suffix.strip() or None}  # one, of all channels
    assert convolutions(channels_last=channels_last, groups=4) == {suffix.strip() or None}


def test_large_filters_and_32_bits_are_not_unusual():
    assert convolutions(groups=16, kernel_size=7) == {None}
    assert convolutions(torch.float32, groups=16) == {None}


def test_a_factor_applies_to_its_trait_alone():
    plain = Roofline("a machine", "cuda", {"bfloat16": [(1, 1, 1, 1e9)]}, ((1.0, 1e12),), launch=0.0)
    slower = replace(plain, factors={"unaligned": 2.0})
    layer, x = nn.Linear(32, 257, bias=False, dtype=torch.bfloat16), torch.randn(16, 32, dtype=torch.bfloat16)
    (odd,) = (work for work in works_of(lambda: layer(x)) if work.kind == "matmul")
    even = replace(odd, shape=(16, 256, 32))
    assert slower.seconds(odd)[0] == 2 * plain.seconds(odd)[0]
    assert slower.seconds(even) == plain.seconds(even)

"""The dry run's forecast of a step: the planner's, with FP32 computed as PyTorch's settings have it."""

from helpers.core.precision import fp32_computed_as
from helpers.planner import Recipe
from helpers.planner.plan import plan
from helpers.virtual_gpu import virtual_gpu

import pytest
import torch
from torch import nn
from transformers import ResNetConfig, ResNetForImageClassification


def forecast_of(layer, x, gpu, precision=None):
    """Return the forecast of the second of two steps of a layer, whose input lies on the GPU."""
    with virtual_gpu(gpu) as run:
        model = layer().cuda()
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)

        def steps():
            for _ in range(2):
                model(torch.randn(x, device="cuda")).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

        if precision is None:
            steps()
        else:
            with fp32_computed_as(precision):
                steps()
    return run.forecast


def convolution(gpu, precision=None):
    return forecast_of(lambda: nn.Conv2d(512, 512, 3, padding=1), (32, 512, 56, 56), gpu, precision)


def matmul(gpu, precision=None):
    return forecast_of(lambda: nn.Linear(4096, 4096), (4096, 4096), gpu, precision)


def test_convolutions_take_tf32_unless_the_program_forbids_it():
    default, forbidden = convolution("a100-40gb"), convolution("a100-40gb", "ieee")
    assert default == convolution("a100-40gb", "tf32")
    assert default.seconds < forbidden.seconds / 4
    assert 0.3 < default.mfu < 1  # of what TF32 could do
    assert convolution("t4-16gb") == convolution("t4-16gb", "ieee")  # no units for it


def test_matmuls_take_tf32_if_the_program_allows_it():
    default, allowed = matmul("a100-40gb"), matmul("a100-40gb", "tf32")
    assert default == matmul("a100-40gb", "ieee")
    assert allowed.seconds < default.seconds / 3


@pytest.mark.parametrize("gpu", ["a100-80gb", "t4-16gb"])
def test_a_program_and_its_recipe_have_the_same_forecast(gpu):
    planned = plan(Recipe("resnet-50", precision="fp32", micro_batch_size=32), gpu).forecasts[gpu]
    with virtual_gpu(gpu) as run:
        model = ResNetForImageClassification(ResNetConfig(num_labels=1000)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            images, labels = torch.randn(32, 3, 224, 224).cuda(), torch.randint(1000, (32,)).cuda()
            model(images, labels=labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert run.forecast.seconds == pytest.approx(planned.seconds, rel=0.01)
    assert run.forecast.mfu == pytest.approx(planned.mfu, rel=0.01)

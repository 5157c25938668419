"""Two optimizers under one name: what each gets, and what a schedule and the meter see."""

from functools import partial

from helpers import MatricesAndRest, state_bytes

import torch
from torch import nn

SGD = partial(torch.optim.SGD, lr=1.0)
MOMENTUM = partial(torch.optim.SGD, lr=1.0, momentum=0.9)


def linear_with_gradients():
    layer = nn.Linear(3, 2)
    for p in layer.parameters():
        p.grad = torch.ones_like(p)
    return layer


def test_matrices_go_to_the_first_and_the_rest_to_the_second():
    layer = linear_with_gradients()
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    both = MatricesAndRest(layer.parameters(), partial(torch.optim.SGD, lr=0.5), partial(torch.optim.SGD, lr=0.25))
    both.step()
    torch.testing.assert_close(layer.weight.detach(), weight - 0.5)
    torch.testing.assert_close(layer.bias.detach(), bias - 0.25)


def test_a_schedule_changes_both_rates():
    layer = linear_with_gradients()
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    both = MatricesAndRest(layer.parameters(), SGD, SGD)
    torch.optim.lr_scheduler.LambdaLR(both, lambda step: 0.125)
    both.step()
    torch.testing.assert_close(layer.weight.detach(), weight - 0.125)
    torch.testing.assert_close(layer.bias.detach(), bias - 0.125)


def test_the_state_of_both_counts():
    layer = linear_with_gradients()
    for make_rest, numbers in ((MOMENTUM, 6 + 2), (SGD, 6)):
        both = MatricesAndRest(layer.parameters(), MOMENTUM, make_rest)
        both.step()
        assert state_bytes(both) == 4 * numbers


def test_without_matrices_only_the_second_is_made():
    (bias,) = [p for p in linear_with_gradients().parameters() if p.dim() == 1]
    assert len(MatricesAndRest([bias], SGD, SGD).parts) == 1

"""Which tensors from the host are the batch, and what a backward pass with a graph of its own makes."""

from helpers.virtual_gpu import virtual_gpu

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def small():
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64)).cuda()
    return model, torch.optim.SGD(model.parameters(), 1e-3)


def step(model, optimizer, x):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_the_batches_of_an_evaluation_are_not_the_batch():
    """They are moved with autograd on, as by transformers' Trainer, and are more than those of the training."""
    with virtual_gpu("t4") as run:
        model, optimizer = small()
        for _ in range(3):
            step(model, optimizer, torch.zeros(32, 64).cuda())
            for _ in range(10):
                x = torch.zeros(50, 64).cuda()
                with torch.no_grad():
                    model(x)
    assert run.to_json()["batch"] == 32


def test_a_teacher_sees_the_batch_first():
    with virtual_gpu("t4") as run:
        (teacher, _), (model, optimizer) = small(), small()
        for _ in range(3):
            x = torch.zeros(32, 64).cuda()
            with torch.no_grad():
                target = teacher(x)
            (model(x) - target).square().mean().backward()
            optimizer.step()
    assert run.to_json()["batch"] == 32


def test_the_states_in_which_a_policy_acts_are_no_batch():
    with virtual_gpu("t4") as run:
        model, optimizer = small()
        states = torch.zeros(1000, 64, device="cuda")
        for turn in range(12):
            with torch.no_grad():
                states[turn] = model(torch.zeros(1, 64).cuda())
            if turn % 4 == 3:
                step(model, optimizer, states[torch.randint(turn, (16,), device="cuda")])
    assert run.to_json()["batch"] is None
    assert "The largest batch is unknown: the tensors that each step copies to the GPU show no batch dimension." in str(
        run
    )


def peak_with(loss_of):
    with virtual_gpu("t4") as run:
        model, optimizer = small()
        for _ in range(2):
            loss_of(model, torch.zeros(5000, 64).cuda()).backward()
            optimizer.step()
            optimizer.zero_grad()
    return run


def penalized(model, x):
    x.requires_grad_()
    (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    return slope.square().sum()


def again(model, x, reentrant):
    x.requires_grad_()
    return checkpoint(model, x, use_reentrant=reentrant).square().sum()


def test_a_derivative_for_a_second_one_is_not_computed_again():
    run = peak_with(penalized)
    assert "recomputed activations" not in run.owners.categories
    assert run.owners.categories["activations"] > 2 * 5000 * 256 * 4
    assert not run.ledger.checkpoints
    assert not any(recomputed for works in run.ledger.works for _, _, recomputed in works)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_is_computed_again(reentrant):
    run = peak_with(lambda model, x: again(model, x, reentrant))
    assert run.owners.categories["recomputed activations"] >= 5000 * 256 * 4
    assert run.ledger.checkpoints
    assert any(recomputed for works in run.ledger.works for _, _, recomputed in works)

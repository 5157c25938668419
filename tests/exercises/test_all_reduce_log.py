"""The timeline of a backward pass and its all-reduces is read from the profiler's trace."""

from types import SimpleNamespace

from helpers.exercises.data_parallel.all_reduce_log import AllReduceLog, Entry
from helpers.exercises.data_parallel.pictures import bucket_timeline
from helpers.ranks.run import run_ranks

import pytest
import torch
import torch.distributed as dist
from torch import nn


def event(name: str, start: float, end: float) -> SimpleNamespace:
    return SimpleNamespace(name=name, time_range=SimpleNamespace(start=start, end=end))


def test_times_are_those_of_the_trace():
    log = AllReduceLog()
    backward = [event("autograd::engine::evaluate_function: MmBackward0", at, at + 1e6) for at in (5e6, 7e6)]
    log.read([event("gloo:all_reduce", 7.5e6, 9e6), event("gloo:all_reduce", 6e6, 7e6), *backward, event("mm", 0, 9e6)])
    assert log.computed == pytest.approx(3)
    assert log.entries == [Entry(1.0, 2.0), Entry(2.5, 4.0)]
    assert log.hidden == pytest.approx((1 + 0.5) / 2.5)
    assert len(bucket_timeline(log).axes[0].patches) == 3


def two_messages() -> AllReduceLog:
    model = nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 1))
    # A hook that does not wait could be over, and the backward pass, too, before gloo's thread begins.
    model[-1].bias.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
    with AllReduceLog() as log:
        model(torch.randn(64, 8)).mean().backward()
        dist.all_reduce(model[0].weight.grad)
    return log


@pytest.mark.slow
def test_a_message_in_the_backward_pass_is_told_from_one_after_it():
    for log in run_ranks(two_messages, 2, device="cpu", measure=False).results:
        first, second = log.entries
        assert 0 < first.asked < log.computed < second.asked < second.answered
        assert first.asked < first.answered

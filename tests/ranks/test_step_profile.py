"""A step profiled in a rank: what it sends is communication, and a meter around it is in the way."""

import time

from helpers import RankError, profile_step, run_ranks

import pytest
import torch
import torch.distributed as dist
from torch import nn

LATE = 0.2  # seconds: much longer than a busy machine lets a process wait


def profiled_data_parallel():
    layer = nn.parallel.DistributedDataParallel(nn.Linear(512, 512))
    x = torch.randn(8, 512)
    return profile_step(lambda: layer(x).sum().backward(), torch.device("cpu"), runs=2)


def profiled_wait():
    """One rank comes late, and the other waits for it."""
    numbers = torch.ones(8)

    def step():
        if dist.get_rank() == 1:
            with torch.profiler.record_function("data"):
                time.sleep(LATE)
        dist.all_reduce(numbers)

    return profile_step(step, torch.device("cpu"), runs=2)


@pytest.mark.slow
def test_gradients_on_their_way_are_communication():
    for profile in run_ranks(profiled_data_parallel, 2, device="cpu", measure=False).results:
        assert profile.by_kind()["collective"] > 0
        assert {part.phase for part in profile.parts if part.kind == "collective"} == {"communication"}
        assert {"forward", "backward"} <= set(profile.by_phase())


def test_waiting_for_a_slow_rank_is_communication():
    prompt, late = run_ranks(profiled_wait, 2, device="cpu", measure=False).results
    assert prompt.by_phase()["communication"] > LATE / 8  # the rest is its own, if the machine lets it wait
    assert late.by_phase()["data"] > 0.9 * LATE


def test_a_measured_rank_says_that_its_meter_is_in_the_way():
    with pytest.raises(RankError, match="run_ranks with measure=True"):
        run_ranks(profiled_data_parallel, 2, device="cpu", show=False)

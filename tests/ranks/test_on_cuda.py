"""Ranks that have a GPU each, and ranks for which there are not enough."""

from helpers import rank_device, run_ranks

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.cuda


def sum_on_own_device():
    x = torch.full((1000,), float(dist.get_rank() + 1), device=rank_device())
    dist.all_reduce(x)
    return x.sum().item() / 1000, x.device.type, dist.get_backend()


def test_ranks_with_a_gpu_each_talk_over_nccl():
    gpus = torch.cuda.device_count()
    run = run_ranks(sum_on_own_device, gpus, show=False)
    assert run.results == [(gpus * (gpus + 1) / 2, "cuda", "nccl")] * gpus
    assert all(run.peak_bytes)


def test_more_ranks_than_gpus_all_compute_on_the_cpu():
    ranks = torch.cuda.device_count() + 1
    run = run_ranks(sum_on_own_device, ranks, show=False)
    assert run.results == [(ranks * (ranks + 1) / 2, "cpu", "gloo")] * ranks


def test_a_notebook_that_has_used_the_gpu_can_still_start_ranks():
    torch.ones(1, device="cuda").add_(1)
    assert run_ranks(sum_on_own_device, 1, show=False).results[0][1] == "cuda"

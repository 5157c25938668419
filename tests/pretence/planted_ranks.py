"""Ranks with a planted mistake, on a pretended machine with two GPUs: see `test_planted.py`."""

import json

from helpers import run_ranks

import torch
import torch.distributed as dist


def _sums(spread: bool) -> float:
    """Add up over ranks: each on its own GPU, or all on the first."""
    device = torch.device("cuda", dist.get_rank() if spread else 0)
    number = torch.ones(1, device=device)
    dist.all_reduce(number)
    return number.item()


def _speaks(device: str) -> float:
    """Open a group that has NCCL alone, and send a tensor of `device`."""
    group = dist.new_group(backend="nccl")
    number = torch.ones(1, device=device)
    dist.all_reduce(number, group=group, op=dist.ReduceOp.AVG)
    return number.item()


def main() -> None:
    """Print what becomes of each pair."""
    outcomes = {}
    for name, work, wrong, right in [
        ("rank_on_another_gpu", _sums, False, True),
        ("cpu_tensor_over_nccl", _speaks, "cpu", "cuda"),
    ]:
        try:
            error = str(run_ranks(work, 2, wrong, show=False).results)
        except RuntimeError as raised:
            error = str(raised)
        outcomes[name] = [error, run_ranks(work, 2, right, show=False).results]
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()

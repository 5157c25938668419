"""Practice check of lab 12: a model that is sharded in truth, not in name."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ..device import rank_device
from ..memory import MemoryMeter
from ..units import human_bytes
from .base import Check, Evidence, Part
from .on_ranks import on_ranks

WIDTH, BLOCKS = 96, 12
ROOM = 1.35  # of the reference's peak: enough to gather two blocks at a time


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def _work(make_sharded: Callable[..., Any], seed: int) -> Evidence:
    """One rank: shard, train three steps, measure the last one; and see what is left of all that was ever allocated."""
    with MemoryMeter(device=rank_device()) as whole:
        evidence, *_kept = _train(make_sharded, seed)
    left = sum(life.nbytes for life in whole.lifetimes if life.end is None)
    return evidence | {"left": left}


def _train(make_sharded: Callable[..., Any], seed: int) -> tuple[Evidence, nn.Module, torch.optim.Optimizer]:
    here, rank, n = rank_device(), dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    model = nn.Sequential(*(_Block() for _ in range(BLOCKS))).to(here)
    parameters = sum(p.numel() for p in model.parameters())
    x, y = (torch.randn(4 * n, WIDTH)[rank::n].to(here) for _ in range(2))
    result = make_sharded(model)
    del model
    optimizer = torch.optim.AdamW(result.parameters(), lr=1e-3)
    losses = []
    meter = MemoryMeter(result, optimizer)
    for step in range(3):
        if step == 2:
            meter.__enter__()
        loss = F.mse_loss(result(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 2:
            meter.__exit__()
        loss = loss.detach().clone()
        dist.all_reduce(loss)
        losses.append(loss.item() / n)
    evidence = {
        "losses": losses,
        "static": sum(meter.largest[tenant] for tenant in ("parameters", "gradients", "optimizer state")),
        "share": 16 * parameters / n,
        "peak": meter.peak_bytes,
    }
    return evidence, result, optimizer


class HoldsItsShareAndNoMore(Check):
    """Trains as DDP would, with 1/N of the static bytes on each rank and a peak within the budget."""

    hint = (
        "fully_shard(block) for each block, so that one is gathered at a time, and let it go after the forward pass "
        "(the default). The whole model as one unit is whole at the peak."
    )

    @staticmethod
    def probe(seed: int, make_sharded: Callable[..., Any]) -> Evidence:
        return {f"{n} ranks": on_ranks(_work, n, make_sharded, seed) for n in (2, 4)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            for rank, (got, right) in enumerate(zip(seen[case], want, strict=True)):
                for step, (a, b) in enumerate(zip(got["losses"], right["losses"], strict=True)):
                    if not abs(a - b) <= 1e-4 * b:
                        return f"{case}: the joint loss of step {step} is {a:.6f}; with averaged gradients {b:.6f}."
                if got["static"] > 1.08 * right["share"]:
                    times = got["static"] / right["share"]
                    return (
                        f"{case}: rank {rank} holds {human_bytes(got['static'])} of parameters, gradients and "
                        f"optimizer state, {times:.2f} times its share of {human_bytes(right['share'])}."
                    )
                if got["peak"] > ROOM * right["peak"]:
                    return (
                        f"{case}: the peak of rank {rank} is {human_bytes(got['peak'])}; "
                        f"the budget is {human_bytes(ROOM * right['peak'])}."
                    )
                if got["left"] > ROOM * right["left"]:
                    return (
                        f"{case}: after the step rank {rank} still holds {human_bytes(got['left'])}; its part of "
                        f"parameters and state is {human_bytes(right['left'])}. Is there a copy of the whole somewhere?"
                    )
        return None


PARTS = (Part("lab12.sharded", ("make_sharded",), (HoldsItsShareAndNoMore,)),)

"""Check of averaged gradients: those of the joint batch, from ranks with unequal rows."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ...ranks.collectives import Collectives
from ..base import Check, Evidence
from ..probing.on_ranks import on_ranks

CASES = {"equal rows": (4, 4), "unequal rows": (6, 1, 3), "a rank without rows": (5, 0, 2), "one rank": (7,)}
NAMES = ("weight 0", "frozen bias 0", "weight 2", "bias 2")


def _work(average_gradients: Callable[..., Any], seed: int, shares: tuple[int, ...]) -> Evidence:
    """What one rank does: its rows of the joint batch, backward, then the learner's average."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    model[0].bias.requires_grad_(False)
    x, y = torch.randn(sum(shares), 6, dtype=torch.float64) * 3, torch.randint(3, (sum(shares),))
    rank = dist.get_rank()
    rows = shares[rank]
    if rows:
        F.cross_entropy(model(x.split(shares)[rank]), y.split(shares)[rank]).backward()
    with Collectives() as collectives:
        average_gradients(model, rows)
    gradients = [None if p.grad is None else p.grad.flatten().tolist() for p in model.parameters()]
    return {"gradients": gradients, "sent": collectives.volume}


class GradientOfTheJointBatch(Check):
    """Each rank ends with the gradient of the mean over all rows of all ranks."""

    hint = (
        "Each rank has a mean over its own rows. Turn it into its part of the joint mean: times rows, divided by the "
        "rows of all ranks, which one small all_reduce tells. Then add up; do not divide again."
    )

    @staticmethod
    def probe(seed: int, average_gradients: Callable[..., Any]) -> Evidence:
        return {case: on_ranks(_work, len(shares), average_gradients, seed, shares) for case, shares in CASES.items()}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            for rank, (got, right) in enumerate(zip(seen[case], want, strict=True)):
                where = f"{case} {CASES[case]}, rank {rank}"
                for name, a, b in zip(NAMES, got["gradients"], right["gradients"], strict=True):
                    if (a is None) != (b is None):
                        return f"{where}: the gradient of {name} is {'missing' if a is None else 'there'}."
                    if a is None:
                        continue
                    off = (torch.tensor(a) - torch.tensor(b)).norm() / torch.tensor(b).norm()
                    if not off <= 1e-6:
                        ratio = torch.tensor(a).norm() / torch.tensor(b).norm()
                        return (
                            f"{where}: the gradient of {name} is off by {off:.2g} (relative), "
                            f"{ratio:.3g} times as long as the joint one."
                        )
                if got["sent"] > 2 * right["sent"]:
                    return f"{where}: you sent {got['sent']:,} bytes; {right['sent']:,} are enough."
        return None


JOINT = (GradientOfTheJointBatch,)

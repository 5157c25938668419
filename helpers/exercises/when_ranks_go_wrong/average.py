"""Check of averaged gradients: those of the joint batch, from ranks with unequal rows."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ...ranks.collectives import Collectives
from ..base import Check, Evidence
from ..data_parallel.messages import Messages
from ..probing.cases import cases_on_ranks

# by number of ranks: the rows of each. Three ranks average twice, with different rows.
CASES = {
    1: {"7 rows": (7,)},
    2: {"4 rows each": (4, 4)},
    3: {"6, 1 and 3 rows": (6, 1, 3), "5, 0 and 2 rows": (5, 0, 2)},
}
NAMES = ("weight 0", "frozen bias 0", "weight 2", "bias 2")


def _average(average_gradients: Callable[..., Any], seed: int, shares: tuple[int, ...]) -> Evidence:
    """One rank: a backward pass on its rows of the joint batch, then the learner's average."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    model[0].bias.requires_grad_(False)
    before = [p.detach().clone() for p in model.parameters()]
    x, y = torch.randn(sum(shares), 6, dtype=torch.float64) * 3, torch.randint(3, (sum(shares),))
    rank = dist.get_rank()
    rows = shares[rank]
    if rows:
        F.cross_entropy(model(x.split(shares)[rank]), y.split(shares)[rank]).backward()
    with Messages() as messages, Collectives() as collectives:
        returned = average_gradients(model, rows)
    return {
        "gradients": [None if p.grad is None else p.grad.flatten().tolist() for p in model.parameters()],
        "kept": all(map(torch.equal, before, model.parameters())),
        "returned": type(returned).__name__,
        "sent": collectives.volume,
        "messages": len(messages.sent) + len(messages.received),
    }


class GradientOfTheJointBatch(Check):
    """Each rank ends with the gradient of the mean over all rows of all ranks."""

    hint = (
        "Each rank has a mean over its own rows. What share of the joint mean is that?\n"
        "No rank knows how many rows the others have. One small collective gives it the sum."
    )

    @staticmethod
    def probe(seed: int, average_gradients: Callable[..., Any]) -> Evidence:
        return cases_on_ranks(_average, CASES, average_gradients, seed)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            for rank, (got, right) in enumerate(zip(seen[case], want, strict=True)):
                where = f"{case}, rank {rank}"
                for name, a, b in zip(NAMES, got["gradients"], right["gradients"], strict=True):
                    if (a is None) != (b is None):
                        wrong = (
                            "None; every trained parameter gets one, also on a rank without rows"
                            if a is None
                            else "not None; a frozen parameter keeps None"
                        )
                        return f"{where}: the gradient of {name} is {wrong}."
                    if a is None:
                        continue
                    off = (torch.tensor(a) - torch.tensor(b)).norm() / torch.tensor(b).norm()
                    if not off <= 1e-6:
                        ratio = torch.tensor(a).norm() / torch.tensor(b).norm()
                        uneven = (
                            " With equal rows it is right. Does every row have the same weight here?"
                            if " and " in case
                            else " What share of the joint mean does each rank's mean have?"
                        )
                        return (
                            f"{where}: the gradient of {name} is off by {off:.2g} (relative), "
                            f"its norm is {ratio:.3g} times the joint gradient's.{uneven}"
                        )
                if not got["kept"]:
                    return f"{where}: the weights have changed; only gradients may change."
                if got["returned"] != "NoneType":
                    return f"{where}: it returns a {got['returned']}; change each `.grad` and return nothing."
                if got["messages"]:
                    return f"{where}: it sends or receives {got['messages']} messages; use only collectives."
                if got["sent"] > 1.4 * right["sent"]:  # to gather is to send 3 / 2 as much on three ranks
                    return (
                        f"{where}: it sent {got['sent']:,} bytes; {right['sent']:,} are enough. "
                        "How often is each gradient sent, and to how many ranks?"
                    )
        return None


AVERAGE = (GradientOfTheJointBatch,)

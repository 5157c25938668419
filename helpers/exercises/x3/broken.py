"""Six data-parallel programs, five of them broken in one line each, and their symptoms.

All of them run to their end, and the loss falls in all of them. The learner diagnoses them from the symptoms.
"""

import copy
import random
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from ...core.data import digits
from ...ranks.collectives import Collectives
from ...ranks.run import run_ranks

DIAGNOSES = {
    1: "nothing is wrong",
    2: "rank 0 alone loads a checkpoint, after the model was wrapped",
    3: "`set_epoch` is never called on the sampler",
    4: "all micro-batches are inside no_sync",
    5: "no micro-batch is inside no_sync",
    6: "the loss of a micro-batch is not divided by the number of micro-batches",
}
PROGRAMS = dict(zip("ABCDEF", random.Random(40).sample(sorted(DIAGNOSES), 6), strict=True))
ROWS, MICRO_BATCH, ACCUMULATE, EPOCHS, RATE = 512, 32, 4, 3, 0.05


class Symptoms(NamedTuple):
    """What is seen of a program.

    Attributes:
        losses: mean loss of rank 0 in the first and the last epoch.
        apart: distance of the two replicas' weights, relative, after the first and the last epoch.
        seen: different rows that rank 0 has had.
        all_reduces: in an update.
        length: of the first update, over that of one process on the joint batch from the same weights.
    """

    losses: tuple[float, float]
    apart: tuple[float, float]
    seen: int
    all_reduces: float
    length: float


def observe() -> dict[str, Symptoms]:
    """Run all programs on two ranks over gloo; return their symptoms by name."""
    zero, one = run_ranks(_all, 2, device="cpu", measure=False).results
    found = {}
    for name in PROGRAMS:
        a, b = zero[name], one[name]
        apart = [_relative(x, y) for x, y in zip(a["weights"], b["weights"], strict=True)]
        losses = a["losses"][0], a["losses"][-1]
        updates = EPOCHS * ROWS // (2 * MICRO_BATCH * ACCUMULATE)
        found[name] = Symptoms(losses, (apart[0], apart[-1]), a["seen"], a["all_reduces"] / updates, a["length"])
    return found


def symptoms_table(found: Mapping[str, Symptoms]) -> list[tuple[str, ...]]:
    """Return the symptoms as rows for `show_table`, the header first."""
    rows = [
        ("program", "loss", "replicas apart", f"rows of {ROWS} on rank 0", "all-reduces per update", "first update")
    ]
    for name, each in found.items():
        losses = " -> ".join(f"{loss:.2f}" for loss in each.losses)
        apart = " -> ".join(f"{far:.2g}" for far in each.apart)
        rows.append((name, losses, apart, str(each.seen), f"{each.all_reduces:g}", f"{each.length:.2f} x"))
    return rows


def compare_diagnoses(answers: Mapping[str, int | None]) -> None:
    """Print for each program that has an answer what is wrong with it, and whether the number in `answers` is right."""
    for name, right in PROGRAMS.items():
        said = answers.get(name)
        if said is None:
            print(f"{name}: no answer yet")
        else:
            words = "right" if said == right else f"not {said}"
            print(f"{name}: {DIAGNOSES[right]} ({right}): {words}")
    print(f"{sum(answers.get(name) == right for name, right in PROGRAMS.items())} of {len(PROGRAMS)} are right")


def _all() -> dict[str, dict[str, Any]]:
    return {name: _train(diagnosis) for name, diagnosis in PROGRAMS.items()}


def _make(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def _train(diagnosis: int) -> dict[str, Any]:
    """One rank of one program."""
    data = digits()
    x, y = data.train_x[:ROWS], data.train_y[:ROWS]
    ddp = DistributedDataParallel(_make(0))
    if diagnosis == 2 and dist.get_rank() == 0:
        ddp.module.load_state_dict(_make(1).state_dict())
    optimizer, sampler = torch.optim.SGD(ddp.parameters(), lr=RATE), DistributedSampler(range(ROWS), seed=0)
    seen, result = set(), {"losses": [], "weights": [], "all_reduces": 0}
    for epoch in range(EPOCHS):
        if diagnosis != 3:
            sampler.set_epoch(epoch)
        groups = torch.tensor(list(sampler)).split(MICRO_BATCH * ACCUMULATE)
        losses = []
        for group in groups:
            before = copy.deepcopy(ddp.module)
            with Collectives() as collectives:
                losses += _update(ddp, optimizer, [(x[rows], y[rows]) for rows in group.split(MICRO_BATCH)], diagnosis)
            result["all_reduces"] += collectives.count("all_reduce")
            if "length" not in result:
                result["length"] = _length(before, ddp.module, x, y, group)
            seen |= set(group.tolist())
        result["losses"].append(torch.stack(losses).mean().item())
        result["weights"].append(_flat(ddp.module))
    return result | {"seen": len(seen)}


def _update(ddp: Any, optimizer: Any, pieces: list[tuple[Tensor, Tensor]], diagnosis: int) -> list[Tensor]:
    """Take one step of all micro-batches; return their losses."""
    optimizer.zero_grad()
    losses = []
    for i, (x, y) in enumerate(pieces):
        silent = diagnosis == 4 or (diagnosis != 5 and i < len(pieces) - 1)
        with ddp.no_sync() if silent else nullcontext():
            loss = F.cross_entropy(ddp(x), y)
            (loss if diagnosis == 6 else loss / len(pieces)).backward()
        losses.append(loss.detach())
    optimizer.step()
    return losses


def _length(before: nn.Module, after: nn.Module, x: Tensor, y: Tensor, rows: Tensor) -> float:
    """Return how far the weights moved over how far one process moves them, on the rows of both ranks."""
    shares = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(shares, rows)
    joint = torch.cat(shares)
    moved = (_flat(after) - _flat(before)).norm()
    before.zero_grad()
    F.cross_entropy(before(x[joint]), y[joint]).backward()
    right = torch.cat([p.grad.flatten() for p in before.parameters()]).norm() * RATE
    return (moved / right).item()


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def _relative(a: Tensor, b: Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()

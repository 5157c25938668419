"""Checks of what follows the backward passes if the ends of a pipeline share a table: its gradient, and one norm."""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import Schedule1F1B

from ..base import Check, Evidence
from ..expert_parallel.parcels import Parcels
from ..probing.on_ranks import on_ranks
from ..tensor_parallel.said import by_rank, noted, wrong_tensor
from .tied_model import on_this_rank, tied_batch, tied_stages

RANKS = (2, 4)
MICRO_BATCHES, ROWS = 4, 6
LIMITS = {"a limit above the norm": 1e6, "a limit below the norm": 0.05}
SMALL = 64  # bytes per step for what is not the table: a norm, in any dtype
NEAR = 1e-5  # relative; with room for a limit divided by the norm itself, without 1e-6 added
Finish = Callable[..., Any]


def _norm(gradients: list[Tensor]) -> float:
    return sum(g.square().sum() for g in gradients).sqrt().item()


def _right(stages: list[nn.Module], ids: Tensor, goal: Tensor, limit: float) -> tuple[float, list[list[Tensor]]]:
    """Return the norm in one process, and each stage's gradients as they are after clipping."""
    whole = nn.Sequential(*stages)
    F.cross_entropy(whole(ids), goal).backward()
    norm = nn.utils.clip_grad_norm_(whole.parameters(), limit).item()
    return norm, [[p.grad for p in stage.parameters()] for stage in stages]


def _finished(finish_step: Finish, seed: int) -> Evidence:
    """One rank: return what an answer does to a step, by limit."""
    ends = dist.new_group([0, dist.get_world_size() - 1])
    return {name: _one_step(finish_step, seed, ends, limit) for name, limit in LIMITS.items()}


def _one_step(finish_step: Finish, seed: int, ends: dist.ProcessGroup, limit: float) -> Evidence:
    """Run PyTorch's schedule, then the answer; return gradients, the norm, and what was sent."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ids, goal = tied_batch(MICRO_BATCHES * ROWS, seed)
    norm, right = _right(tied_stages(ranks, seed, torch.float64), ids, goal, limit)
    module = tied_stages(ranks, seed, torch.float64)[rank]
    schedule = Schedule1F1B(on_this_rank(module, rank, ranks), n_microbatches=MICRO_BATCHES, loss_fn=F.cross_entropy)
    schedule.step(*([ids] if rank == 0 else []), **({"target": goal} if rank == ranks - 1 else {}))
    own, before = [p.grad.clone() for p in module.parameters()], copy.deepcopy(module.state_dict())
    with Parcels() as parcels:
        got = finish_step(list(module.parameters()), module.table, ends, limit)
    return {
        "got": [noted(p.grad) for p in module.parameters()],
        "right": [noted(g) for g in right[rank]],
        "own": [noted(g) for g in own],
        "names": [name for name, _ in module.named_parameters()],
        "norm": float(got) if isinstance(got, (float, Tensor)) else None,
        "right norm": norm,
        "own norm": _norm(own),
        "kept": all(torch.equal(p, before[name]) for name, p in module.state_dict().items()),
        "sent": [[list(p.ranks), p.left] for p in parcels.parcels],
        "table": 0 if module.table is None else module.table.nbytes,
    }


def observe(seed: int, finish_step: Finish) -> Evidence:
    """Return what each rank measured, by number of ranks and limit."""
    seen = {ranks: on_ranks(_finished, ranks, finish_step, seed) for ranks in RANKS}
    return {f"{ranks} ranks, {name}": [rank[name] for rank in seen[ranks]] for ranks in RANKS for name in LIMITS}


class _OfRanks(Check):
    """Judges each case on all ranks."""

    probe = staticmethod(observe)

    @classmethod
    def judge(cls, seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            texts = [cls.wrong(case, *pair) for pair in zip(seen[case], want, strict=True)]
            if said := by_rank(case, texts):
                return said
        return None

    @classmethod
    def wrong(cls, case: str, got: Evidence, want: Evidence) -> str | None:
        """Return what is wrong on a rank."""
        raise NotImplementedError


class AddsUpTheTable(_OfRanks):
    """Both copies of the table get the gradient of one process, and all other gradients stay what they are."""

    hint = (
        "The first rank has the gradient of the lookups, the last rank that of the logits. In one process they are "
        "added up.\nWhich ranks are in `ends`? Ranks between them have no table: `table` is None there."
    )

    @classmethod
    def wrong(cls, case: str, got: Evidence, want: Evidence) -> str | None:
        if "above" not in case:  # clipping is judged by the next check
            return None
        for name, mine, right, own in zip(want["names"], got["got"], want["right"], want["own"], strict=True):
            mistakes = {"is that of this rank's own use of it": own} if name == "table" else {}
            if text := wrong_tensor(mine, right, mistakes):
                return f"the gradient of {name} {text}."
        return None if got["kept"] else "a parameter was changed; only gradients should change."


class ClipsByTheJointNorm(_OfRanks):
    """The norm is that of the whole model, with the table counted once, and all gradients are clipped by it."""

    hint = (
        "Each rank adds up the squares of its gradients; an all-reduce adds these numbers up over all ranks.\n"
        "After its gradients have been added up, the table is on two ranks. Leave it out on one of them.\n"
        "`clip_grads_with_norm_(parameters, limit, norm)` scales by a norm that you pass."
    )

    @classmethod
    def wrong(cls, case: str, got: Evidence, want: Evidence) -> str | None:
        norm, right = got["norm"], want["right norm"]
        if norm is None:
            return "no norm was returned."
        if not abs(norm - right) <= 1e-6 * right:
            return f"the norm is {norm:.6g}; in one process it is {right:.6g}."
        for name, mine, goal in zip(want["names"], got["got"], want["right"], strict=True):
            if name != "table" and (text := wrong_tensor(mine, goal, {}, NEAR)):
                return f"the gradient of {name} {text}."
        if "below" in case and (text := wrong_tensor(got["got"][0], want["right"][0], {}, NEAR)):
            return f"the gradient of {want['names'][0]} {text}."
        return None


class SendsTheTableOnce(_OfRanks):
    """The table's gradient is sent once, between the two ends; apart from it, only a norm is sent."""

    hint = "The check lists the bytes that this rank sends, by group. `group=ends` keeps a collective to the two ends."

    @classmethod
    def wrong(cls, case: str, got: Evidence, want: Evidence) -> str | None:
        mine, most = (sum(left for _, left in entry["sent"]) for entry in (got, want))
        if mine <= most + SMALL:
            return None
        said = " and ".join(f"{left:,.0f} B among ranks {ranks}" for ranks, left in got["sent"])
        return f"sends {said}; {most:,.0f} B and a few more for the norm are enough."


TIED = (AddsUpTheTable, ClipsByTheJointNorm, SendsTheTableOnce)

"""Checks of expert parallelism: the layer of one process, inside its group, without an unnecessary byte."""

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from ..base import Check, Evidence
from ..mixture_of_experts.inputs import Drawn, drawn, leaf
from ..probing.on_ranks import on_ranks
from ..tensor_parallel.said import EXACT, by_rank, noted, wrong_tensor
from .one_loop import one_loop
from .parcels import Parcels

TOKENS = (5, 3, 7, 4)  # of each rank
NEVER, WHAT = -99.0, ("y", "x", "weights", "up", "down")
UNSORTED = "is what results if the rows go through the experts in the order in which they arrived"
GROUPS = {"along": "groups of ranks 0, 1 and 2, 3", "across": "groups of ranks 0, 2 and 1, 3"}
NAMES = ("the output", *(f"the gradient of {name}" for name in ("x", "weights", "up", "down")))


def _cases(ranks: int) -> dict[str, tuple[list[int], list[float], int, torch.dtype]]:
    """Return for each case: tokens of each rank, how its 2·ranks experts are favored, k, and the dtype."""
    even, sizes = [0.0] * (2 * ranks), list(TOKENS[:ranks])
    return {
        "any load": (sizes, even, 2, torch.float64),
        "uneven load": (sizes, [2.0, *even[2:], 1.0], 3, torch.float64),
        "k = 1": (sizes, even, 1, torch.float64),
        "expert 1 gets no token": (sizes, [0.0, NEVER, *even[2:]], 2, torch.float64),
        "rank 1 gets no token": (sizes, [0.0, 0.0, NEVER, NEVER, *even[4:]], 2, torch.float64),
        "rank 0 has no tokens": ([0, *sizes[1:]], even, 2, torch.float64),
        "in FP32": (sizes, [1.0, *even[1:]], 2, torch.float32),
    }


def _mine(given: Drawn, sizes: list[int], rank: int) -> tuple[slice, slice]:
    """Return which tokens and which experts are this rank's."""
    first, each = sum(sizes[:rank]), len(given.up) // len(sizes)
    return slice(first, first + sizes[rank]), slice(rank * each, (rank + 1) * each)


def _compared(given: Drawn, sizes: list[int], expert_parallel: Any, group: dist.ProcessGroup) -> Evidence:
    """Run this rank's part of the tokens, beside the loop of one process; see what was changed."""
    tokens, experts = _mine(given, sizes, dist.get_rank(group))
    inputs = [given.x[tokens], given.chosen[tokens], given.weights[tokens], given.up[experts], given.down[experts]]
    x, weights, up, down = (leaf(inputs[i]) for i in (0, 2, 3, 4))
    chosen = inputs[1].clone()
    used = x * 1, weights * 1, up * 1, down * 1
    y = expert_parallel(used[0], chosen, *used[1:], group)
    if y.requires_grad and y.shape == inputs[0].shape:
        (y * given.goal[tokens]).sum().backward()
    right = one_loop(given)
    cut = {"y": tokens, "x": tokens, "weights": tokens, "up": experts, "down": experts}
    before = (inputs[0], *inputs[2:], inputs[1])
    names = ("x", "weights", "up", "down", "chosen")
    pairs = zip(names, (*used, chosen), before, strict=True)
    changed = [name for name, now, then in pairs if not torch.equal(now, then)]
    return {
        "got": [noted(t) for t in (y, x.grad, weights.grad, up.grad, down.grad)],
        "right": [noted(right[name][cut[name]]) for name in WHAT],
        "unsorted": noted(one_loop(_unsorted(given, sizes))["y"][tokens]),
        "changed": changed,
    }


def _unsorted(given: Drawn, sizes: list[int]) -> Drawn:
    """Return `given` with the experts that each rank's rows go through if they stay in the order of their arrival."""
    k, each = given.chosen.shape[1], len(given.up) // len(sizes)
    chosen, sender = given.chosen.flatten(), torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes) * k)
    mistaken = chosen.clone()
    for rank in range(len(sizes)):
        mine = (chosen // each == rank).nonzero().flatten()
        arrived = mine[(sender[mine] * len(given.up) + chosen[mine]).argsort(stable=True)]
        mistaken[arrived] = chosen[mine].sort().values
    return replace(given, chosen=mistaken.view_as(given.chosen))


def _in_the_world(seed: int, expert_parallel: Any) -> Evidence:
    seen = {}
    for case, (sizes, favor, k, dtype) in _cases(dist.get_world_size()).items():
        given = drawn(seed, sum(sizes), favor, k, dtype)
        seen[case] = _compared(given, sizes, expert_parallel, dist.group.WORLD)
    return seen


def _in_groups(seed: int, expert_parallel: Any) -> Evidence:
    """Four ranks in two groups of two, neighbors and then every second; each group has tokens of its own."""
    mesh, seen = init_device_mesh("cpu", (2, 2), mesh_dim_names=("across", "along")), {}
    for name, other in (("along", "across"), ("across", "along")):
        own = seed + mesh.get_local_rank(other)
        given = drawn(own, 8, [1.0, 0.0, 0.0, 0.0])
        seen[GROUPS[name]] = _compared(given, [5, 3], expert_parallel, mesh.get_group(name))
    return seen


def _wrong(seen: list[Evidence], expected: list[Evidence], tolerance: float = EXACT) -> str | None:
    for case in expected[0]:
        near = 1e-5 if case == "in FP32" else tolerance
        for i, what in enumerate(NAMES):
            texts = []
            for got, want in zip(seen, expected, strict=True):
                mistakes = {UNSORTED: want[case]["unsorted"]} if i == 0 else {}
                texts.append(wrong_tensor(got[case]["got"][i], want[case]["right"][i], mistakes, near))
            if said := by_rank(f"{case}, {what}", texts):
                return said
    return None


def observe(seed: int, expert_parallel: Any) -> Evidence:
    """Return, by number of ranks, what each of them measured where the group is the world."""
    return {str(ranks): on_ranks(_in_the_world, ranks, seed, expert_parallel) for ranks in (2, 4)}


class EqualsOneProcess(Check):
    """Output and gradients are those of one process with all tokens and all experts, however uneven the load."""

    hint = (
        "Rows arrive sorted by the rank that sent them, and within each rank by expert. `grouped` needs all rows of an "
        "expert together.\n"
        "The received counts, as (ranks, experts of this rank), determine which expert each row belongs to: "
        "`repeat_interleave`, then `argsort`.\n"
        "Restore the order in which the rows arrived, and send the results with the lists swapped."
    )

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return next(filter(None, (_wrong(seen[ranks], expected[ranks]) for ranks in expected)), None)


class KeepsToItsGroup(Check):
    """All communication stays inside `group`, whichever ranks it contains."""

    hint = "Which call uses the whole world: `dist.get_world_size()` without the group, an all-to-all without `group=`?"

    after = ("equals_one_process",)

    @staticmethod
    def probe(seed: int, expert_parallel: Any) -> Evidence:
        return {"ranks": on_ranks(_in_groups, 4, seed, expert_parallel)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen["ranks"], expected["ranks"])


class KeepsWhatComesIn(Check):
    """No input tensor is changed: x, chosen, weights and the experts keep their values."""

    hint = "Which line writes into a tensor that your function did not create?"

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for ranks, want in expected.items():
            for case in want[0]:
                texts = [
                    f"{', '.join(changed)} changed" if (changed := got[case]["changed"]) else None
                    for got in seen[ranks]
                ]
                if said := by_rank(f"{case}, inputs that should stay as they are", texts):
                    return said
        return None


def _sent(seed: int, expert_parallel: Any) -> Evidence:
    """One rank of three, with uneven load: what leaves it, forward and backward."""
    sizes = list(TOKENS[:3])
    given = drawn(seed, sum(sizes), [1.0, 0.0, 0.0, 0.0, 2.0, 0.0], 2, torch.float32)
    tokens, experts = _mine(given, sizes, dist.get_rank())
    x, weights, up, down = (
        leaf(t) for t in (given.x[tokens], given.weights[tokens], given.up[experts], given.down[experts])
    )
    with Parcels() as forward:
        y = expert_parallel(x * 1, given.chosen[tokens], weights * 1, up * 1, down * 1, dist.group.WORLD)
    with Parcels() as backward:
        y.sum().backward()
    return {
        way: [[p.name, p.left] for p in seen.parcels] for way, seen in (("forward", forward), ("backward", backward))
    }


class SendsEachRowOnce(Check):
    """Rows, results and their gradients are sent once each; apart from them, only the row counts are sent."""

    hint = (
        "List what leaves the rank: the counts (one number per expert), the rows, the results. What else is sent?\n"
        "Uneven parts need no padding: the exchanged counts are the split sizes."
    )

    @staticmethod
    def probe(seed: int, expert_parallel: Any) -> Evidence:
        return {"ranks": on_ranks(_sent, 3, seed, expert_parallel)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        counts = 3 * 6 * 8  # bytes: every rank's number of rows for every expert, gathered
        texts = []
        for got, want in zip(seen["ranks"], expected["ranks"], strict=True):
            least = sum(left for _, left in want["forward"][1:])  # the first one is the counts'
            said = _too_much(got["forward"], "forward", (3, least, least + counts))
            back = sum(left for _, left in want["backward"])
            texts.append(said or _too_much(got["backward"], "backward", (2, back, back)))
        return by_rank("uneven load, what leaves a rank", texts)


def _too_much(calls: list[list[Any]], way: str, bounds: tuple[int, int, int]) -> str | None:
    """Say what is sent in one direction that need not be; `bounds`: collectives, fewest bytes, most bytes."""
    number, least, most = bounds
    total = sum(left for _, left in calls)
    listed = ", ".join(f"{name} {left:,} B" for name, left in calls) or "nothing"
    if not least <= total <= most:
        counts = f", and the counts at most {most - least:,} B" if most > least else ""
        return f"{way} pass: {total:,} B leave ({listed}); the rows take {least:,} B{counts}"
    if len(calls) > number:
        return f"{way} pass: {len(calls)} collectives ({listed}); {number} are enough"
    return None


LAYER = (EqualsOneProcess, KeepsToItsGroup, KeepsWhatComesIn, SendsEachRowOnce)

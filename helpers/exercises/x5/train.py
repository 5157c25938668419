"""Checks of part 4: training steps of a model whose sequence is spread over a group. Both look at the same steps."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..base import Check, Evidence
from ..probing.distance import relative_distance, too_large
from ..probing.on_ranks import on_ranks
from .gathered import gathered_attention
from .groups import LIMIT, open_groups

EXACT = 1e-6  # relative, in FP64
WORDS, WIDTH, LONGEST = 11, 8, 32
IGNORED = -100
OLD = 7.0  # a number of a gradient that an earlier step has left
OVERFLOWN = "2 ranks, one token each"  # there it is infinite: 0 times that is NaN
STEPS, MOVE = 3, 0.2  # of each model, whose weights move between them: what a step leaves must not reach the next
# Group, rows, tokens of a rank, what becomes of the targets, and whether the model is in training mode.
CASES = {
    "2 ranks": (2, 2, 4, "all", True),
    "4 ranks": (4, 2, 4, "all", True),
    "2 ranks, one row, some targets ignored": (2, 1, 6, "some", True),
    "4 ranks, one without targets": (4, 2, 4, "none on rank 1", True),
    "2 ranks, one token each": (2, 1, 1, "all", True),
    # More than BF16 counts one by one, and an odd number.
    "2 ranks, 259 rows, a model in evaluation mode": (2, 259, 1, "all but one", False),
    "1 rank": (1, 2, 6, "all", True),
}


class _Model(nn.Module):
    """A small causal model in FP64 with tied weights, a scale that may be frozen, and attention over its group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.qkv = nn.ModuleList([nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2)])
        self.scale = nn.Parameter(torch.tensor(1.3), requires_grad=False)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.tokens.weight  # one parameter that has two names
        self._its_group = group
        self._modes_seen: list[list[bool]] = []  # of each call; an answer may keep names of its own on the model
        self.double()

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return logits (B, t, WORDS) for `tokens` (B, t) at `positions` (t,)."""
        self._modes_seen.append(_modes(self))
        x = self.tokens(tokens) + self.places(positions)
        for layer in self.qkv:
            q, k, v = layer(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)  # (B, 2 heads, t, WIDTH / 2)
            x = x + gathered_attention(q, k, v, positions, self._its_group).transpose(1, 2).flatten(2) * self.scale
        return self.head(x)


def _modes(model: nn.Module) -> list[bool]:
    """Say whether a model and its parts are in training mode."""
    return [module.training for module in model.modules()]


def _part(seed: int, case: str, step: int, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs, targets (B, t) and positions (t,) of a rank. (Any way to spread a sequence will do.)

    From the second step on some targets are ignored, so that each step has another number of them.
    """
    ranks, rows, length, kept, _ = CASES[case]
    rng = random.Random(seed)
    order = list(range(ranks * length))
    rng.shuffle(order)
    positions = torch.tensor(sorted(order[rank * length : (rank + 1) * length]))
    generator = torch.Generator().manual_seed(seed + 1000 * step)
    inputs, targets = torch.randint(WORDS, (2, rows, ranks * length), generator=generator).unbind()
    if kept == "some" or step:
        targets[torch.rand(targets.shape, generator=generator) < torch.linspace(0, 0.8, ranks * length)] = IGNORED
    if kept == "all but one":
        targets[0, 0] = IGNORED
    inputs, targets = inputs[:, positions], targets[:, positions]
    return inputs, targets.fill_(IGNORED) if kept == "none on rank 1" and rank == 1 else targets, positions


def _step(train_step: Callable[..., Any], model: _Model, part: tuple[Tensor, Tensor, Tensor]) -> Evidence:
    """One rank: a step, and what it has done to the model and to what it was given."""
    given, modes, model._modes_seen = [*model.parameters(), *part], _modes(model), []
    before, trained = [x.detach().clone() for x in given], [p.requires_grad for p in model.parameters()]
    left = None if model.scale.grad is None else model.scale.grad.detach().clone()
    loss = train_step(model, *part, model._its_group)
    frozen = None if model.scale.requires_grad else model.scale.grad
    return {
        "rank": dist.get_rank(model._its_group),
        "loss": loss if isinstance(loss, float) else type(loss).__name__,
        "calls": len(model._modes_seen),
        "kept_modes": all(seen == modes for seen in (*model._modes_seen, _modes(model))),
        "kept_frozen": [p.requires_grad for p in model.parameters()] == trained,
        "moved": any(not torch.equal(a, b) for a, b in zip(given, before, strict=True)),
        "gradients": {
            name: None if p.grad is None else p.grad.double().flatten().tolist()
            for name, p in model.named_parameters()
            if p.requires_grad
        },
        "frozen": left is None and frozen is not None,
        # It may stay, be removed, or be set to zeros.
        "stale": bool(left is not None and frozen is not None and frozen.any() and not torch.equal(frozen, left)),
    }


def _steps(train_step: Callable[..., Any], seed: int) -> dict[str, list[Evidence]]:
    """One rank: the steps of each case it takes part in."""
    seen = {}
    for number, (case, (ranks, *_, mode)) in enumerate(CASES.items()):
        group = open_groups(ranks)
        if group is None:
            continue
        here = seed + 100 * number + 10 * dist.get_process_group_ranks(group)[0]  # each group has its own
        torch.manual_seed(here)
        model = _Model(group)
        model.train(mode)
        model.qkv[0].train(not mode)  # as a part that is frozen, or one that is measured
        for p in model.parameters():  # left behind by an earlier step, in some cases by one that trained all of them
            old = torch.full_like(p, float("inf") if case == OVERFLOWN else OLD)
            p.grad = old if p.requires_grad or number % 2 else None
        values = [p.detach().clone() for p in model.parameters()]
        seen[case], moves = [], torch.Generator().manual_seed(here)
        for step in range(STEPS):
            model.scale.requires_grad_(step == STEPS - 1)  # frozen until then
            seen[case].append(_step(train_step, model, _part(here, case, step, dist.get_rank(group))))
            with torch.no_grad():  # the same moves whatever the gradients are: each check has mistakes of its own
                for p, value in zip(model.parameters(), values, strict=True):
                    p.copy_(value.add_(MOVE * torch.randn(value.shape, dtype=value.dtype, generator=moves)))
    return seen


def observe(seed: int, train_step: Callable[..., Any]) -> Evidence:
    """Return what each rank saw, by case, step by step."""
    return {"ranks": on_ranks(_steps, 4, train_step, seed, timeout=LIMIT)}


class _OnSteps(Check):
    points = 1
    probe = staticmethod(observe)

    @classmethod
    def judge(cls, seen: Evidence, expected: Evidence) -> str | None:
        for case, step in itertools.product(CASES, range(STEPS)):  # a wrong step spoils those after it
            steps = [want[case][step] for want in expected["ranks"] if case in want]
            for got, want in zip(seen["ranks"], expected["ranks"], strict=True):
                wrong = cls.wrong(got[case][step], want[case][step], steps) if case in want else None
                if wrong:
                    return f"{case}, step {step + 1}: {wrong}"
        return None

    @classmethod
    def wrong(cls, seen: Evidence, right: Evidence, world: list[Evidence]) -> str | None:
        """Say what is wrong with the step of one rank; `world` are the right steps of all ranks."""
        raise NotImplementedError


class LossIsOfTheWholeSequence(_OnSteps):
    """The loss is the mean over all ranks' targets that count, and the same float on each rank."""

    hint = (
        'Sum the losses (reduction="sum" leaves out the -100s), count the targets, and all_reduce both in the group.\n'
        "A mean of means gives too much weight to a rank with few targets, and a rank without any has no mean."
    )

    @classmethod
    def wrong(cls, seen: Evidence, right: Evidence, world: list[Evidence]) -> str | None:
        if not isinstance(seen["loss"], float):
            return f"rank {right['rank']} returned a {seen['loss']}; expected a Python float."
        if not abs(seen["loss"] - right["loss"]) <= EXACT * right["loss"]:
            returned, loss = (f"{number:.6g}" for number in (seen["loss"], right["loss"]))
            if returned == loss:
                return f"rank {right['rank']} returned {seen['loss']:.9g}, rounded: the loss is {right['loss']:.9g}."
            return f"rank {right['rank']} returned {returned}; over the whole sequence it is {loss}."
        if seen["calls"] != 1:
            return f"rank {right['rank']} called the model {seen['calls']} times; the contract allows one call."
        if not seen["kept_modes"]:
            return (
                f"rank {right['rank']} changed whether the model, or a part of it, is in training mode or in "
                "evaluation mode; leave its mode as it is."
            )
        return None


class GradientsAreOfTheWholeSequence(_OnSteps):
    """Each parameter's gradient is that of the loss in one process, the same on each rank; old ones do not leak in."""

    hint = (
        "A rank's loss is its sum divided by the number of targets of all ranks. Which operation combines the "
        "gradients of parts of one sum?\n"
        "Parts of a sum are summed: all_reduce adds up, and nothing is divided by the number of ranks."
    )

    @classmethod
    def wrong(cls, seen: Evidence, right: Evidence, world: list[Evidence]) -> str | None:
        if not seen["kept_frozen"]:
            return f"rank {right['rank']} changed which parameters are frozen (requires_grad=False)."
        if seen["frozen"]:
            return f"rank {right['rank']} gave the frozen parameter a gradient."
        if seen["stale"]:
            return (
                f"rank {right['rank']} changed the gradient that the frozen parameter had from an earlier step. "
                "Sum the gradients of trained parameters only."
            )
        if seen["moved"]:
            return f"rank {right['rank']} changed parameters or inputs. A step changes nothing but gradients."
        for name, want in right["gradients"].items():
            got, where = seen["gradients"][name], f"the gradient of {name} on rank {right['rank']}"
            if got is None:
                return f"{where} is None."
            off = relative_distance(got, want)
            if not off <= EXACT:
                a, b = torch.tensor(got), torch.tensor(want)
                ratio = (a.norm() / b.norm()).item()
                if off > 0.02 and torch.cosine_similarity(a, b, dim=0) > 0.9999:
                    return f"{where} is {too_large(ratio)}."
                cause = _cause(a, b, sum(torch.tensor(one["gradients"][name]) for one in world if one["rank"] == 0))
                if cause:
                    return f"{where} {cause}"
                early = "" if off > 0.02 else ", as if rounded to fewer bits on the way"
                return f"{where} is off by {off:.2g} (relative){early}."
        return None


def _cause(got: Tensor, want: Tensor, of_all_groups: Tensor) -> str | None:
    """Say why a gradient is wrong, where its numbers show it."""
    if not got.isfinite().all():
        return "has NaN or infinite entries. Do they come from an earlier step? An infinite number times 0 is NaN."
    extra = got - want
    if extra.numel() > 1 and extra.mean() > OLD / 2 and (extra - extra.mean()).abs().max() < EXACT * OLD:
        return "still includes that of an earlier step: each of its numbers is too large by the same amount."
    if relative_distance(got.tolist(), of_all_groups.tolist()) <= EXACT:
        return "is summed over all ranks of the world; sum it over `group`."
    return None


TRAIN = (LossIsOfTheWholeSequence, GradientsAreOfTheWholeSequence)

"""The lists of actions that an answer makes, for several pipelines, and the base of checks on lists."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from ...pipelines.action import Action
from ..base import Check, Evidence

Make = Callable[..., Iterable[Any]]  # (rank, ranks, m) -> a list of actions; with several chunks, v as well
Lists = list[list[Action]]  # by rank


@dataclass(frozen=True)
class Case:
    """A pipeline: the number of ranks, of micro-batches, and of chunks per rank (0: not passed to the answer)."""

    ranks: int
    m: int
    v: int = 0

    @property
    def chunks(self) -> int:
        """Chunks on each rank."""
        return max(1, self.v)

    @property
    def numbers(self) -> list[int]:
        """What `Case` takes, as evidence keeps it."""
        return [self.ranks, self.m, self.v]

    def __str__(self) -> str:
        chunks = f", {self.v} chunk{'s' * (self.v > 1)} per rank" if self.v else ""
        return f"{self.ranks} rank{'s' * (self.ranks > 1)}, {self.m} micro-batch{'es' * (self.m > 1)}{chunks}"


def any_number(seed: int) -> list[Case]:
    """Return pipelines of all kinds: fewer micro-batches than ranks, and numbers that do not divide each other."""
    rng = random.Random(seed)
    fixed = [Case(4, 8), Case(3, 7), Case(5, 2), Case(4, 1), Case(1, 3), Case(2, 13)]
    return [*fixed, Case(rng.randint(2, 7), rng.randint(1, 12))]


def enough(seed: int) -> list[Case]:
    """Return pipelines with at least as many micro-batches as ranks."""
    rng = random.Random(seed)
    ranks = rng.randint(2, 6)
    return [Case(4, 8), Case(3, 7), Case(5, 5), Case(1, 3), Case(ranks, ranks + rng.randint(0, 6))]


def in_chunks(seed: int) -> list[Case]:
    """Return pipelines with chunks; the number of micro-batches is a multiple of the number of ranks."""
    rng = random.Random(seed)
    ranks = rng.randint(2, 5)
    fixed = [Case(4, 8, 2), Case(2, 6, 3), Case(3, 3, 2), Case(4, 8, 1), Case(1, 2, 2)]
    return [*fixed, Case(ranks, ranks * rng.randint(1, 4), rng.randint(2, 3))]


def lists_of(make: Make, case: Case) -> list[list[list[Any]]]:
    """Return the answer's list for each rank as [kind, micro-batch, chunk]; the kind of other entries is "?"."""
    more = (case.v,) if case.v else ()
    return [[_plain(action) for action in make(rank, case.ranks, case.m, *more)] for rank in range(case.ranks)]


def actions_of(entry: Evidence) -> Lists:
    """Return the lists in the evidence of one pipeline."""
    return [[Action(*action) for action in actions] for actions in entry["lists"]]


def _plain(action: Any) -> list[Any]:
    try:
        kind, micro_batch, chunk = Action.of(action)
        return [kind, int(micro_batch), int(chunk)]
    except (TypeError, ValueError):
        return ["?", 0, 0]


class OnLists(Check):
    """A check that judges the lists alone, pipeline by pipeline."""

    cases: ClassVar[Callable[[int], list[Case]]]

    @classmethod
    def probe(cls, seed: int, make: Make) -> Evidence:
        return {str(case): {"of": case.numbers, "lists": lists_of(make, case)} for case in cls.cases(seed)}

    @classmethod
    def judge(cls, seen: Evidence, expected: Evidence) -> str | None:
        for name, want in expected.items():
            if wrong := cls.wrong(Case(*want["of"]), actions_of(seen[name])):
                return f"{name}: {wrong}"
        return None

    @classmethod
    def wrong(cls, case: Case, lists: Lists) -> str | None:
        """Return what is wrong with the lists of one pipeline, None if nothing is."""
        raise NotImplementedError

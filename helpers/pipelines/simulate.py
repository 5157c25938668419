"""How long lists of actions take, if an action starts as soon as its rank is free and what it needs has arrived.

A rank that has sent something goes on without waiting. Messages take no time, unless the costs say so.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from .action import Action
from .costs import Costs
from .placement import Placement, in_a_row, rank_of, stage_count
from .timeline import Entry, Timeline

Done = dict[tuple[str, int, int], float]  # (kind, micro-batch, stage) -> when it was done


class Stuck(RuntimeError):
    """Every rank that has something left to do waits for something that does not come.

    Attributes:
        waiting: (rank, its next action, what that waits for) of each rank that has not finished.
    """

    def __init__(self, waiting: list[tuple[int, str, str]]) -> None:
        lines = [f"rank {rank} is at {action} and waits for {what}" for rank, action, what in waiting]
        super().__init__("; ".join(lines))
        self.waiting = waiting


def simulate(
    schedules: Sequence[Iterable[Any]], placement: Placement | None = None, costs: Costs | None = None
) -> Timeline:
    """Run the lists of all ranks and return the diary, in ticks.

    Args:
        schedules: a list of actions for each rank.
        placement: which rank keeps which stage; by default, rank r keeps stage r.
        costs: how long actions take; by default a forward pass one tick and a backward pass two.

    Raises:
        Stuck: the ranks wait for each other.
    """
    placement, costs = placement or in_a_row(len(schedules)), costs or Costs()
    todo = [[Action.of(action) for action in schedule] for schedule in schedules]
    done: Done = {}
    diaries: list[list[Entry]] = [[] for _ in todo]
    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(todo):
            while len(diaries[rank]) < len(actions):
                kind, micro_batch, chunk = actions[len(diaries[rank])]
                stage = placement[rank][chunk]
                needed = needs(kind, micro_batch, stage, stage_count(placement) - 1)
                times = [_when(done, need) for need in needed]
                if None in times:
                    break
                ways = [0.0 if need[2] in placement[rank] else costs.message for need in needed]
                free = diaries[rank][-1].end if diaries[rank] else 0.0
                start = max([free, *(time + way for time, way in zip(times, ways, strict=True) if time is not None)])
                end = done[kind, micro_batch, stage] = start + costs.of(kind, stage)
                diaries[rank].append(Entry(kind, micro_batch, stage, start, end))
                moved = True
    waiting = [rank for rank, actions in enumerate(todo) if len(diaries[rank]) < len(actions)]
    if waiting:
        raise Stuck([_wait(rank, todo[rank][len(diaries[rank])], placement, done) for rank in waiting])
    return Timeline(diaries, "ticks")


def needs(kind: str, micro_batch: int, stage: int, last: int) -> list[tuple[str, int, int]]:
    """Return what must be done before an action: (kind, micro-batch, stage) each; "I" stands for any backward pass."""
    if kind == "W":
        return [("I", micro_batch, stage)]
    if kind == "F":
        return [("F", micro_batch, stage - 1)] if stage > 0 else []
    return [("F", micro_batch, stage), *([("I", micro_batch, stage + 1)] if stage < last else [])]


def _when(done: Done, need: tuple[str, int, int]) -> float | None:
    """Return when something was done, None if it has not been. A whole backward pass has the input's gradient, too."""
    kind, *which = need
    return done.get(need, done.get(("B", *which)) if kind == "I" else None)


def _wait(rank: int, action: Action, placement: Placement, done: Done) -> tuple[int, str, str]:
    stage = placement[rank][action.chunk]
    needed = needs(action.kind, action.micro_batch, stage, stage_count(placement) - 1)
    kind, micro_batch, where = next(need for need in needed if _when(done, need) is None)
    letter = "B" if kind == "I" and action.kind == "B" else kind
    return rank, str(action), f"{letter}{micro_batch} on rank {rank_of(placement, where)}"

"""How long lists of actions take, if an action starts as soon as its rank is free and what it needs has arrived.

A rank that has sent something goes on without waiting. Messages take no time, unless the costs say so.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from .action import Action
from .costs import Costs
from .placement import Placement, in_a_row, rank_of, stage_count
from .play import BACKWARD, FOR_INPUT, Pass, Stuck, play
from .timeline import Entry, Timeline


def simulate(
    schedules: Sequence[Iterable[Any]], placement: Placement | None = None, costs: Costs | None = None
) -> Timeline:
    """Run the lists of all ranks and return the log, in ticks.

    Args:
        schedules: a list of actions for each rank.
        placement: which rank keeps which stage; by default, rank r keeps stage r.
        costs: how long actions take; by default a forward pass one tick and a backward pass two.

    Raises:
        Stuck: the ranks wait for each other.
    """
    placement, costs = placement or in_a_row(len(schedules)), costs or Costs()
    todo = [
        [Pass(kind, mine[chunk], micro_batch) for kind, micro_batch, chunk in map(Action.of, schedule)]
        for schedule, mine in zip(schedules, placement, strict=True)
    ]

    def message(stage: int) -> float:
        return 0.0 if rank_of(placement, stage) == rank_of(placement, stage + 1) else costs.message

    try:
        spans = play(todo, lambda action: costs.of(action.kind, action.stage), message, stage_count(placement))
    except Stuck as stuck:
        raise Stuck([_in_words(*wait, placement) for wait in stuck.waiting]) from None
    logs = [[_entry(span.action, span.begin, span.end) for span in mine] for mine in spans]
    return Timeline(logs, "ticks")


def _entry(action: Pass, begin: float, end: float) -> Entry:
    return Entry(action.kind, action.micro_batch, action.stage, begin, end)


def _in_words(rank: int, action: Pass, need: Pass, placement: Placement) -> tuple[int, str, str]:
    """Return a wait in the words of the lists: of a rank and its chunk, where `play` speaks of stages."""
    mine = Action(action.kind, action.micro_batch, placement[rank].index(action.stage))
    letter = BACKWARD if need.kind == FOR_INPUT and action.kind == BACKWARD else need.kind
    return rank, str(mine), f"{letter}{need.micro_batch} on rank {rank_of(placement, need.stage)}"

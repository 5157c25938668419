"""The step of a whole pipeline: every rank does its actions in order, and waits for what others send.

An action begins when its rank is free and its input has arrived: a forward pass needs that of the stage before, a
backward pass that of the stage after. What a rank waits is the bubble; it is not a formula here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .schedule import BACKWARD, FOR_INPUT, FOR_WEIGHTS, FORWARD, Action


@dataclass(frozen=True)
class Span:
    """An action of one rank, with the seconds at which it begins and ends."""

    rank: int
    action: Action
    begin: float
    end: float


def play(
    orders: Sequence[Sequence[Action]],
    seconds: Callable[[Action], float],
    message: Callable[[int], float],
    stages: int,
    ready: Callable[[Action], float] = lambda action: 0.0,
) -> list[list[Span]]:
    """Return when each rank does what.

    Args:
        orders: the actions of each rank.
        seconds: how long an action takes.
        message: seconds from a stage to the next one.
        stages: of all ranks.
        ready: before when an action cannot begin.

    Raises:
        ValueError: the ranks wait for each other for ever.
    """
    ended: dict[tuple[str, int, int], float] = {}
    spans: list[list[Span]] = [[] for _ in orders]
    at = [0] * len(orders)
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            while at[rank] < len(order):
                action = order[at[rank]]
                arrived = _arrival(action, ended, message, stages)
                if arrived is None:
                    break
                begin = max(arrived, ready(action), spans[rank][-1].end if spans[rank] else 0.0)
                end = begin + seconds(action)
                spans[rank].append(Span(rank, action, begin, end))
                ended[_result(action), action.stage, action.micro_batch] = end
                at[rank] += 1
                moved = True
    if any(count < len(order) for count, order in zip(at, orders, strict=True)):
        raise ValueError("the schedule deadlocks: every rank waits for another")
    return spans


def _result(action: Action) -> str:
    """Return whose result an action makes: both kinds of backward pass make the input's gradient."""
    return BACKWARD if action.kind in (BACKWARD, FOR_INPUT) else action.kind


def _arrival(
    action: Action, ended: dict[tuple[str, int, int], float], message: Callable[[int], float], stages: int
) -> float | None:
    """Return when all that `action` needs is there; None if that is not known yet."""
    kind, stage, micro_batch = action
    if kind == FORWARD:
        if stage == 0:
            return 0.0
        before = ended.get((FORWARD, stage - 1, micro_batch))
        return None if before is None else before + message(stage - 1)
    own = ended.get((FORWARD if kind != FOR_WEIGHTS else BACKWARD, stage, micro_batch))
    if kind == FOR_WEIGHTS or stage == stages - 1 or own is None:
        return own
    after = ended.get((BACKWARD, stage + 1, micro_batch))
    return None if after is None else max(own, after + message(stage))

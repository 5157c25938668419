"""When each rank of a pipeline does what: every rank does its passes in order, and waits for what others send.

A pass begins when its rank is free and its input has arrived: a forward pass needs that of the stage before, a backward
pass that of the stage after. A rank that has sent something goes on without waiting. What a rank waits is the bubble;
it is not a formula here. The learner's lists of passes and the planner's layouts are both played by this one function.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

FORWARD, BACKWARD = "F", "B"
FOR_INPUT, FOR_WEIGHTS = "I", "W"  # the two halves of a backward pass that is split


class Pass(NamedTuple):
    """A pass of a micro-batch through one stage of the model: "F", "B", or the halves of a backward pass "I" and "W".

    Stages are counted over all ranks.
    """

    kind: str
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.micro_batch} of stage {self.stage}"


@dataclass(frozen=True)
class Span:
    """A pass of one rank, with the times at which it begins and ends."""

    action: Pass
    begin: float
    end: float


class Stuck(RuntimeError):
    """Every rank that has something left to do waits for something that does not come.

    Attributes:
        waiting: (rank, its next pass, the pass for which that waits) of each rank that has not finished.
    """

    def __init__(self, waiting: Sequence[tuple[int, Any, Any]]) -> None:
        super().__init__("; ".join(f"rank {rank} is at {now} and waits for {what}" for rank, now, what in waiting))
        self.waiting = list(waiting)


Ended = Mapping[tuple[str, int, int], float]  # a backward pass, whole or the input's half, is there as FOR_INPUT


def play(
    orders: Sequence[Sequence[Pass]],
    seconds: Callable[[Pass], float],
    message: Callable[[int], float],
    stages: int,
    ready: Callable[[Pass], float] = lambda action: 0.0,
) -> list[list[Span]]:
    """Return when each rank does what.

    Args:
        orders: the passes of each rank.
        seconds: how long a pass takes, in any unit.
        message: from a stage to the next one, or back, in that unit.
        stages: of all ranks.
        ready: before when a pass cannot begin.

    Raises:
        Stuck: ranks wait for passes that never come.
    """
    ended: dict[tuple[str, int, int], float] = {}
    spans: list[list[Span]] = [[] for _ in orders]
    moved = True
    while moved:
        moved = False
        for order, done in zip(orders, spans, strict=True):
            while len(done) < len(order):
                action = order[len(done)]
                arrived = _arrival(action, ended, message, stages)
                if arrived is None:
                    break
                begin = max(arrived, ready(action), done[-1].end if done else 0.0)
                end = begin + seconds(action)
                done.append(Span(action, begin, end))
                kind = FOR_INPUT if action.kind == BACKWARD else action.kind
                ended[kind, action.stage, action.micro_batch] = end
                moved = True
    waiting = []
    for rank, (order, done) in enumerate(zip(orders, spans, strict=True)):
        if len(done) < len(order):
            action = order[len(done)]
            waiting.append((rank, action, next(need for need in _needs(action, stages) if need not in ended)))
    if waiting:
        raise Stuck(waiting)
    return spans


def _needs(action: Pass, stages: int) -> list[Pass]:
    """Return what must have ended: of its own stage first, then of the neighbor that sends to it."""
    kind, stage, micro_batch = action
    if kind == FOR_WEIGHTS:
        return [Pass(FOR_INPUT, stage, micro_batch)]
    if kind == FORWARD:
        return [Pass(FORWARD, stage - 1, micro_batch)] if stage else []
    after = [Pass(FOR_INPUT, stage + 1, micro_batch)] if stage < stages - 1 else []
    return [Pass(FORWARD, stage, micro_batch), *after]


def _arrival(action: Pass, ended: Ended, message: Callable[[int], float], stages: int) -> float | None:
    """Return when all that `action` needs is there; None if that is not known yet."""
    arrived = 0.0
    for need in _needs(action, stages):
        end = ended.get(need)
        if end is None:
            return None
        arrived = max(arrived, end if need.stage == action.stage else end + message(min(need.stage, action.stage)))
    return arrived

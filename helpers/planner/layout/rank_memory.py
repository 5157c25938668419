"""The memory of a pipeline rank through a step: what its stages hold, and what each action adds for a while.

A stage was run alone. Here its actions are put in the order of the schedule: a forward pass leaves the activations of
one more micro-batch, a backward pass frees them, and while an action runs it takes as much more as it took alone.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from . import stage_run as runs
from .layout import Layout
from .schedule import FOR_INPUT, FORWARD, Action
from .stage_run import StageRun
from .trace import Place

Held = Counter[str]


@dataclass
class RankMemory:
    """The fullest moment of a rank.

    Attributes:
        peak: bytes by tenant then.
        at: the action, and the place in it.
        in_flight: the most micro-batches whose activations it held at once, over all its stages.
    """

    peak: Held
    at: str
    in_flight: int

    @property
    def nbytes(self) -> int:
        """Bytes of the peak."""
        return self.peak.total()


def rank_memory(layout: Layout, order: Sequence[Action], stages: Mapping[int, StageRun]) -> RankMemory:
    """Return the fullest moment of a rank whose actions are `order` and whose stages did `stages` alone."""
    held: Held = Counter()
    for stage in stages.values():
        held += next(iter(stage.actions.values()))[-1].end  # what is there before the step: weights and state
    result = RankMemory(held.copy(), "between steps", 0)
    in_flight = 0
    fullest: dict[tuple[int, runs.ActionKey], tuple[int, Place]] = {}
    for action in order:
        key = action_key(layout, action)
        places = stages[action.stage].actions[key]
        if (action.stage, key) not in fullest:
            fullest[action.stage, key] = _fullest(places)
        _see(
            result,
            held,
            places,
            fullest[action.stage, key],
            f"{action.kind}{action.micro_batch} of stage {action.stage}",
        )
        if action.kind != FOR_INPUT:  # what the weights' gradients need stays until they are computed
            held = _after(held, places)
        in_flight += (action.kind == FORWARD) - (action.kind not in (FORWARD, FOR_INPUT))
        result.in_flight = max(result.in_flight, in_flight)
    for number, stage in stages.items():
        places = stage.actions[runs.UPDATE, ""]
        _see(result, held, places, _fullest(places), f"update of stage {number}")
    return result


def action_key(layout: Layout, action: Action) -> runs.ActionKey:
    """Return under which name the run of a stage has what `action` does."""
    kind = runs.FORWARD if action.kind == FORWARD else runs.BACKWARD
    last = layout.micro_batches - 1
    which = runs.LAST if action.micro_batch == last else runs.FIRST if action.micro_batch == 0 else runs.NEXT
    return kind, which


def _fullest(places: Sequence[Place]) -> tuple[int, Place]:
    """Return the fullest of an action's places, and how many bytes more than at its beginning it holds."""
    start = places[0].start.total()
    # A repeated block has no figures of its own: its neighbours hold as much.
    return max(((place.peak.total() - start, place) for place in places if place.peak), key=lambda rise: rise[0])


def _see(result: RankMemory, held: Held, places: Sequence[Place], fullest: tuple[int, Place], what: str) -> None:
    more, place = fullest
    if held.total() + more > result.nbytes:
        result.peak, result.at = _moved(held, places[0].start, place.peak), f"{what}, {place.name}"


def _after(held: Held, places: Sequence[Place]) -> Held:
    return _moved(held, places[0].start, places[-1].end)


def _moved(held: Held, start: Held, end: Held) -> Held:
    """Return `held` changed as from `start` to `end`."""
    return Counter({tenant: held[tenant] + end[tenant] - start[tenant] for tenant in {*held, *start, *end}})

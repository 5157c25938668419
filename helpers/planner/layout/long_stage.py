"""A long stage from two short ones: blocks that are alike are run once and counted as often as there are.

With every group of alike blocks that a stage has more, each place but the new ones holds the same number of bytes more:
their weights, and what they keep for the backward pass. So the bytes of a long stage lie on the straight line through
those of two short ones, and its events are theirs, with the middle group repeated. `tests/planner/layout` holds this
against stages that are run whole.
"""

from collections import Counter
from dataclasses import replace
from functools import lru_cache

from .layout import Layout
from .stage_run import StageKind, StageRun, run_stage
from .trace import Place

FEW = 3  # groups of a short stage: with fewer, what one block gathers for the next would be missing
_run = lru_cache(maxsize=64)(run_stage)


def run_long_stage(layout: Layout, kind: StageKind) -> StageRun:
    """Return what `run_stage` would return, from short stages."""
    period = layout.recompute_every
    alike = max(kind.dense, kind.mixed)
    least = FEW * period + alike % period
    if alike <= least + period:
        return _run(layout, kind)
    short, longer = (_with_alike(kind, least + more) for more in (0, period))
    return _grown(_run(layout, short), _run(layout, longer), (alike - least) // period, _Groups(least, period))


def _with_alike(kind: StageKind, blocks: int) -> StageKind:
    return replace(kind, dense=blocks) if kind.dense >= kind.mixed else replace(kind, mixed=blocks)


class _Groups:
    """Where the new blocks of a longer stage are: before the last group."""

    def __init__(self, least: int, period: int) -> None:
        self.least, self.period = least, period


def _grown(short: StageRun, longer: StageRun, times: int, groups: _Groups) -> StageRun:
    actions = {
        action: _grown_places(places, longer.actions[action], times, groups.period)
        for action, places in short.actions.items()
    }
    sizes = (short.parameters, longer.parameters), (short.expert_parameters, longer.expert_parameters)
    return StageRun(actions, *(few + times * (more - few) for few, more in sizes))


def _grown_places(short: list[Place], longer: list[Place], times: int, period: int) -> list[Place]:
    """Return the places of an action, with `times` groups more than `short` has; `longer` has one more."""
    if len(short) == len(longer):  # the update: no places of its own for a block
        return [_line(few, more, times) for few, more in zip(short, longer, strict=True)]
    new = len(short) - 1 - period  # where the group begins that only `longer` has: before the last group and "post"
    head = [_line(few, more, times) for few, more in zip(short[:new], longer[:new], strict=True)]
    tail = [_line(few, more, times) for few, more in zip(short[new:], longer[new + period :], strict=True)]
    middle = [
        Place(place.name, place.events, recomputed_flops=place.recomputed_flops) for place in longer[new:][:period]
    ]
    return [*head, *middle * times, *tail]


def _line(few: Place, more: Place, times: int) -> Place:
    start, peak, end = (
        _extrapolated(a, b, times) for a, b in ((few.start, more.start), (few.peak, more.peak), (few.end, more.end))
    )
    return Place(few.name, few.events, start, peak, end, few.recomputed_flops)


def _extrapolated(few: Counter[str], more: Counter[str], times: int) -> Counter[str]:
    return Counter({tenant: few[tenant] + times * (more[tenant] - few[tenant]) for tenant in {*few, *more}})

"""A long stage from two short ones: blocks that are alike are run once and counted as often as there are.

With every group of alike blocks that a stage has more, each place but the new ones holds the same number of bytes more:
their weights, and what they keep for the backward pass. So the bytes of a long stage lie on the straight line through
those of two short ones, and its events are theirs, with the middle group repeated. `tests/planner/layout` holds this
against stages that are run whole. Only what the allocator rounds is not on the line: the flat vectors of a sharded
optimizer may be off by less than 512 bytes a group.
"""

import itertools
from collections import Counter
from dataclasses import replace
from functools import lru_cache

from ...meter.work import Work
from .layout import Layout
from .stage_run import BACKWARD, FORWARD, StageKind, StageRun, run_stage
from .trace import Event, Place

FEW = 3  # groups of a short stage: with fewer, what one block gathers for the next would be missing
_known = lru_cache(maxsize=256)(run_stage)


def run_key(layout: Layout) -> Layout:
    """Return the plainest layout whose stages run like those of `layout`.

    Neither the schedule (but for GPipe's, and one that splits the backward passes of sharded parameters), nor
    micro-batches beyond three, nor their groups, nor stages beyond two, nor workspaces, nor passes over the buffer of
    gradients, nor matmuls in four bits change what a stage does; nor does the number of replicas beyond two where none
    of them holds experts of its own.
    """
    own = layout.schedule == "gpipe" or (layout.splits_backward and layout.zero == "zero3")
    plain = replace(
        layout,
        pipeline=min(2, layout.pipeline),
        schedule=layout.schedule if own else "1f1b",
        virtual_stages=1,
        micro_batches=min(3, layout.micro_batches),
        micro_batch_group=0,
        deferred_logits=0,
        ends_as_blocks=False,
        stage_sizes=(),
        large_workspace=False,
        buffer_passes=False,
        four_bits=False,
    )
    if layout.arch.experts:
        return plain
    plain = replace(plain, replicate=min(2 if layout.zero == "zero3" else 1, layout.replicate))
    return replace(plain, shard=1) if layout.zero == "none" else plain


def _run(layout: Layout, kind: StageKind) -> StageRun:
    return _known(run_key(layout), kind)


def run_long_stage(layout: Layout, kind: StageKind) -> StageRun:
    """Return what `run_stage` would return, from short stages."""
    period = layout.recompute_every
    alike = max(kind.dense, kind.mixed)
    least = FEW * period + alike % period
    if alike <= least + period:
        return _run(layout, kind)
    short, longer = (_with_alike(kind, least + more) for more in (0, period))
    return _grown(kind, (_run(layout, short), _run(layout, longer)), (alike - least) // period, period)


def _with_alike(kind: StageKind, blocks: int) -> StageKind:
    return replace(kind, dense=blocks) if kind.dense >= kind.mixed else replace(kind, mixed=blocks)


def _grown(kind: StageKind, runs: tuple[StageRun, StageRun], times: int, period: int) -> StageRun:
    short, longer = runs
    follow = {FORWARD: kind.mixed, BACKWARD: 0} if kind.dense >= kind.mixed else {FORWARD: 0, BACKWARD: kind.dense}
    actions = {
        action: _grown_places((places, longer.actions[action]), times, period, follow.get(action[0], 0))
        for action, places in short.actions.items()
    }
    sizes = (short.parameters, longer.parameters), (short.expert_parameters, longer.expert_parameters)
    numbers = (few + times * (more - few) for few, more in sizes)
    first = 0 if kind.dense >= kind.mixed else kind.dense  # of the blocks that are alike
    return StageRun(actions, *numbers, longer.lives if period == 1 else (), longer.blocks, first + 1, times - 1)


def _grown_places(pair: tuple[list[Place], list[Place]], times: int, period: int, follow: int) -> list[Place]:
    """Return the places of an action, with `times` groups more than the first of `pair`; the second has one more.

    After the alike blocks come `follow` others.
    """
    short, longer = pair
    if len(short) == len(longer):  # the update: no places of its own for a block
        return [
            replace(_line(few, more, times), events=_grown_events(few.events, more.events, times))
            for few, more in zip(short, longer, strict=True)
        ]
    new = len(short) - 1 - follow - period  # where the group begins that only `longer` has: before the last group
    head = [_line(few, more, times) for few, more in zip(short[:new], longer[:new], strict=True)]
    tail = [_line(few, more, times) for few, more in zip(short[new:], longer[new + period :], strict=True)]
    middle = [
        Place(place.name, place.events, recomputed_flops=place.recomputed_flops) for place in longer[new:][:period]
    ]
    # From group to group there is as much more, or less: fullest is the one that `head` ends with, or the last new one.
    last = [_line(*pair, times) for pair in zip(short[new - period : new], longer[new:][:period], strict=True)]
    return [*head, *middle * (times - 1), *last, *tail]


def _grown_events(few: list[Event], more: list[Event], times: int) -> list[Event]:
    """Return the events of an update: what is called for each tensor is called more often, the rest on more bytes."""
    runs = [[list(run) for _, run in itertools.groupby(events, _operation)] for events in (few, more)]
    result: list[Event] = []
    for short, longer in zip(*runs, strict=True):
        new = len(longer) - len(short)
        if new:
            at = next((i for i, (a, b) in enumerate(zip(short, longer, strict=False)) if a != b), len(short))
            result += [*short[:at], *longer[at : at + new] * times, *short[at:]]
        else:
            result += [_scaled(a, b, times) for a, b in zip(short, longer, strict=True)]
    return result


def _operation(event: Event) -> tuple[str, ...]:
    return (event.name, event.dtype) if isinstance(event, Work) else (event.collective,)


def _scaled(few: Event, more: Event, times: int) -> Event:
    if not (isinstance(few, Work) and isinstance(more, Work)):
        return few
    nbytes, flops = (a + times * (b - a) for a, b in ((few.bytes, more.bytes), (few.flops, more.flops)))
    return replace(few, bytes=nbytes, flops=flops)


def _line(few: Place, more: Place, times: int) -> Place:
    start, peak, end = (
        _extrapolated(a, b, times) for a, b in ((few.start, more.start), (few.peak, more.peak), (few.end, more.end))
    )
    return Place(few.name, few.events, start, peak, end, few.recomputed_flops)


def _extrapolated(few: Counter[str], more: Counter[str], times: int) -> Counter[str]:
    return Counter({category: few[category] + times * (more[category] - few[category]) for category in {*few, *more}})

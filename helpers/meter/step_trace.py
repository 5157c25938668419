"""A profiled step, cut into stretches of time that do not overlap and leave nothing out.

On a CPU a stretch is an operation that works; on a GPU it is a kernel, and belongs to the operation that launched it.
What lies between is a gap: Python and the dispatcher, and on a GPU every moment in which no kernel runs. A gap belongs
to the phase that it leads to, unless it lies in a labeled range. Communication counts where nothing else runs.
"""

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from .kinds import Kind, kind_of_kernel
from .phases import Phase, range_phase
from .spans import TOP, Place, Span, place_of, placed, span_trees

STEP = "step"  # label of the range to cut
_COMPILED = "## Call CompiledFxGraph"  # between the operations inside run the compiler's own kernels

Range = tuple[int, int, Phase]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Time that belongs to one thing, from `start` to `end` (ns of the profiler's clock).

    Attributes:
        phase: of the training step.
        kind: of operation, or "gap".
        name: of the operation ("aten::mm"), or of a kernel that no known operation launched.
        events: how many events the profiler recorded in it on the host, each of which took time.
    """

    start: int
    end: int
    phase: Phase
    kind: Kind | Literal["gap"]
    name: str
    events: int = 0


def step_stretches(events: Sequence[Any]) -> tuple[list[Stretch], bool]:
    """Cut the range labeled `STEP` in the events of Kineto; say as well whether they have kernels of a GPU.

    Raises:
        LookupError: if there is no such range.
    """
    trees = span_trees(events)
    step = next((span for spans in trees.values() for span in spans if span.name == STEP), None)
    if step is None:
        raise LookupError("the profiler recorded no step")
    ranges = [(s.start, s.end, phase) for s, _ in placed(step.inside) if (phase := range_phase(s.name))]
    kernels = [e for e in events if e.device_type() == torch.autograd.DeviceType.CUDA and not e.is_user_annotation()]
    if kernels:
        places = {span.correlation: place for spans in trees.values() for span, place in placed(spans)}
        busy = [_of_kernel(kernel, places) for kernel in kernels]
        starts = [span.start for span, _ in placed(step.inside)]
    else:
        busy = [*_on_host(step.inside, TOP), *map(_of_gloo, filter(_is_of_gloo, events))]
        starts = [span.start for span, place in placed(step.inside) if not place.operation]
    return list(_filled(step, _without_overlap(busy, step), ranges, starts)), bool(kernels)


def _on_host(spans: Iterable[Span], around: Place) -> Iterator[Stretch]:
    """Yield the operations among `spans` and inside them."""
    for span in spans:
        place = place_of(span, around)
        phase = place.phase or "forward"
        if place.operation:
            yield Stretch(span.start, span.end, phase, *place.operation, len(span))
            continue
        if span.name.startswith(_COMPILED):
            ends = [span.start, *(inner.end for inner in span.inside)]
            starts = [*(inner.start for inner in span.inside), span.end]
            for end, start in zip(ends, starts, strict=True):
                yield Stretch(end, start, phase, "pointwise", "compiled")
        yield from _on_host(span.inside, place)


def _is_of_gloo(event: Any) -> bool:
    return event.name().startswith("gloo:") and event.device_type() == torch.autograd.DeviceType.CPU


def _of_gloo(event: Any) -> Stretch:
    """Return a collective, which Gloo runs on threads of its own."""
    start = event.start_ns()
    return Stretch(start, start + event.duration_ns(), "communication", "collective", event.name())


def _of_kernel(kernel: Any, places: dict[int, Place]) -> Stretch:
    launched_by = kernel.linked_correlation_id()  # 0 if nothing that the profiler knows
    place = places.get(launched_by, TOP) if launched_by else TOP
    kind, name = place.operation or (kind_of_kernel(kernel.name()), kernel.name())
    phase = "communication" if kind == "collective" else place.phase or "forward"
    start = kernel.start_ns()
    return Stretch(start, start + kernel.duration_ns(), phase, kind, name)


# -- laying them out


def _without_overlap(stretches: Iterable[Stretch], step: Span) -> list[Stretch]:
    """Return what of `stretches` lies in the step, in order: of two at once the earlier, and communication last."""
    kept: list[Stretch] = []
    for communicates in (False, True):
        chosen = sorted((s for s in stretches if (s.kind == "collective") == communicates), key=lambda s: s.start)
        kept = sorted([*kept, *_fitted(chosen, kept, step)], key=lambda s: s.start)
    return kept


def _fitted(stretches: Iterable[Stretch], kept: list[Stretch], step: Span) -> Iterator[Stretch]:
    """Yield the pieces of `stretches`, sorted, that neither overlap each other nor those in `kept`."""
    cursor = step.start
    starts, ends = [s.start for s in kept], [s.end for s in kept]
    for stretch in stretches:
        start, end = max(stretch.start, cursor), min(stretch.end, step.end)
        cursor = max(cursor, end)
        at = bisect.bisect_right(ends, start)
        while start < end:
            stop = min(end, starts[at]) if at < len(kept) else end
            if stop > start:
                yield replace(stretch, start=start, end=stop)
            start = ends[at] if at < len(kept) else end
            at += 1


def _filled(step: Span, busy: Sequence[Stretch], ranges: list[Range], starts: list[int]) -> Iterator[Stretch]:
    """Yield `busy` and the gaps between, from the start of the step to its end; a gap counts the `starts` in it."""
    cursor = step.start
    phase = busy[-1].phase if busy and busy[-1].phase != "data" else "forward"  # after the last operation
    starts = sorted(starts)
    for stretch in busy:
        yield from _gap(cursor, stretch.start, stretch.phase, ranges, starts)
        yield stretch
        cursor = stretch.end
    yield from _gap(cursor, step.end, phase, ranges, starts)


def _gap(start: int, end: int, phase: Phase, ranges: list[Range], starts: list[int]) -> Iterator[Stretch]:
    """Yield the gap from `start` to `end`, cut where a labeled range begins or ends."""
    inside = [r for r in ranges if r[0] < end and r[1] > start]
    cuts = sorted({start, end, *(cut for r in inside for cut in r[:2] if start < cut < end)})
    for left, right in itertools.pairwise(cuts):
        label = next((r[2] for r in inside if r[0] <= left and right <= r[1]), phase)
        events = bisect.bisect_left(starts, right) - bisect.bisect_left(starts, left)
        yield Stretch(left, right, label, "gap", "", events)

"""What PyTorch's profiler recorded on the host: operations, nodes of the backward pass and labeled ranges, nested.

Each span has a place: the phase of the training step and the operation at work. Autograd marks its nodes; PyTorch
labels optimizers and data loaders; and an operation that autograd records while a node runs is part of a forward pass
that runs again.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from .kinds import Kind, is_composite, kind_of
from .phases import Phase, range_phase

_NODE = "autograd::engine::evaluate_function: "
# CUDA's own calls, what the profiler does itself, and collectives, which begin on one thread and end on another.
_NOT_NESTED = ("cuda", "cu", "[", "profiler::", "gloo:", "nccl:")


@dataclass(slots=True, eq=False)
class Span:
    """One event on the host, from `start` to `end` (ns of the profiler's clock), with those inside it.

    Attributes:
        thread: on which it ran.
        correlation: by which kernels name the operation that launched them.
        records: whether autograd recorded it.
    """

    name: str
    start: int
    end: int
    thread: int
    correlation: int
    records: bool
    inside: list["Span"] = field(default_factory=list)

    def __len__(self) -> int:
        """Return how many events there are, those inside included."""
        return 1 + sum(map(len, self.inside))


class Place(NamedTuple):
    """Where a span stands.

    Attributes:
        phase: as far as the spans around it say; None at the top.
        in_backward: whether a node of the backward pass is around it.
        operation: the kind and the name of the operation to which it belongs; None if it only calls others.
    """

    phase: Phase | None = None
    in_backward: bool = False
    operation: tuple[Kind, str] | None = None


TOP = Place()


def span_trees(events: Iterable[Any]) -> dict[int, list[Span]]:
    """Return the outermost spans of each thread, in order of time, from the events of Kineto."""
    on_host = (event for event in events if event.device_type() == torch.autograd.DeviceType.CPU)
    spans = [_span(event) for event in on_host if not event.name().startswith(_NOT_NESTED)]
    spans.sort(key=lambda span: (span.start, -span.end))
    roots: dict[int, list[Span]] = defaultdict(list)
    still_open: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        around = still_open[span.thread]
        while around and around[-1].end < span.end:  # over, or it saw the range begin and not end
            around.pop()
        (around[-1].inside if around else roots[span.thread]).append(span)
        around.append(span)
    return roots


def _span(event: Any) -> Span:
    start = event.start_ns()
    thread, correlation = event.start_thread_id(), event.correlation_id()
    return Span(event.name(), start, start + event.duration_ns(), thread, correlation, event.sequence_nr() >= 0)


def placed(spans: Iterable[Span], around: Place = TOP) -> Iterator[tuple[Span, Place]]:
    """Yield each of `spans`, and those inside it, with its place."""
    for span in spans:
        place = place_of(span, around)
        yield span, place
        yield from placed(span.inside, place)


def place_of(span: Span, around: Place) -> Place:
    """Return the place of `span`, which stands in one with the place `around`."""
    if around.operation:
        return around
    labelled = range_phase(span.name)
    if labelled:
        return Place(labelled, around.in_backward)
    if span.name.startswith(_NODE):
        return Place("backward", True)
    phase = around.phase
    if phase == "backward" and span.records and "::" in span.name:
        phase = "recompute"
    kind = kind_of(span.name) if "::" in span.name else None
    if kind is None or (span.inside and is_composite(span.name)):
        return Place(phase, around.in_backward)
    return Place("communication" if kind == "collective" else phase, around.in_backward, (kind, span.name))

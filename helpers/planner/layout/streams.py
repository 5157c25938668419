"""How long an action takes, by replaying its events on streams.

The host launches one operation after the other, and runs ahead of the chip. The chip computes in one stream; each wire
is another. A tensor-parallel collective stops the computation until it is done; gathering and reducing of sharded
parameters goes on beside it, and is waited for where its result is needed. So overlap is not a factor here: what is
hidden comes out of the order.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ...meter.roofline import Roofline
from ...meter.work import Work
from .links import Links
from .trace import Arrival, Event, Message, Place


@dataclass
class Timing:
    """The seconds of an action.

    Attributes:
        seconds: from its beginning until the chip and all wires are done.
        parts: of them, by what the chip did: "compute", "memory", "launch", or waited for: the name of a wire.
        weights: seconds of the products that make weights' gradients, which a zero-bubble schedule puts off.
    """

    seconds: float = 0.0
    parts: Counter[str] = field(default_factory=Counter)
    weights: float = 0.0


@dataclass(frozen=True)
class _Stretch:
    """Operations between two messages: how many, and the chip's seconds, by what bounds them."""

    operations: int
    seconds: float
    parts: Counter[str]
    weights: float


@dataclass(frozen=True)
class Pace:
    """How fast operations follow each other.

    Attributes:
        launch: seconds in which the host launches one.
        kernel: seconds that even the smallest takes on the chip.
    """

    launch: float
    kernel: float


class Streams:
    """Replays events on one chip with its wires.

    Args:
        roofline: of the chip.
        links: of the layout's wires.
        low: dtype in which products run, where it is not that of their operands: "float8_e4m3fn", or "".
        pace: of operations.
    """

    def __init__(self, roofline: Roofline, links: Links, low: str, pace: Pace) -> None:
        self._chip, self._links, self._low, self._pace = replace(roofline, launch=0.0), links, low, pace
        self._known: dict[Work, tuple[float, str]] = {}
        # By the id of a place's events, which are kept beside: another list could get the id of one that is gone.
        self._stretches: dict[int, tuple[list[Event], list[_Stretch | Message | Arrival]]] = {}

    def run(self, places: Sequence[Place]) -> Timing:
        """Return how long the places of an action take, one after the other."""
        timing = Timing()
        host = chip = copied = 0.0
        free: Counter[str] = Counter()  # wire -> when it is free again
        waiting: dict[str, list[tuple[str, float]]] = {}  # collective -> (wire, when it will be done)
        for place in places:
            for event in self._summed(place.events):
                if isinstance(event, _Stretch):
                    host += event.operations * self._pace.launch
                    late = max(0.0, host - chip - event.seconds)
                    chip += event.seconds + late
                    timing.parts.update(event.parts)
                    timing.parts["launch"] += late
                    timing.weights += event.weights
                elif isinstance(event, Message):
                    host += self._pace.launch
                    # What is gathered needs a buffer, which is free once the last gathering was copied out.
                    ready = max(host, copied) if event.collective == "all-gather" and not event.waits else chip
                    begun = max(ready, free[event.wire])
                    done = free[event.wire] = begun + self._links.seconds(event)
                    if event.waits:
                        timing.parts[event.wire] += done - chip
                        chip = done
                    else:
                        waiting.setdefault(event.collective, []).append((event.wire, done))
                elif waiting.get(event.collective):
                    wire, done = waiting[event.collective].pop(0)
                    timing.parts[wire] += max(0.0, done - chip)
                    chip = copied = max(chip, done)
        for wire, done in free.items():
            timing.parts[wire] += max(0.0, done - chip)
            chip = max(chip, done)
        timing.seconds = chip
        return timing

    def _summed(self, events: list[Event]) -> list[_Stretch | Message | Arrival]:
        """Return the events with what is computed between messages summed up; repeated places share theirs."""
        _, known = self._stretches.get(id(events), (events, None))
        if known is None:
            known = []
            self._stretches[id(events)] = events, known
            works: list[Work] = []
            for event in [*events, None]:
                if isinstance(event, Work):
                    works.append(event)
                    continue
                known += [self._stretch(works)] if works else []
                known += [event] if event is not None else []
                works = []
        return known

    def _stretch(self, works: Sequence[Work]) -> _Stretch:
        parts: Counter[str] = Counter()
        weights = 0.0
        for work in works:
            seconds, bound = self._seconds(work)
            parts[bound] += seconds
            weights += seconds if work.layout == "tn" else 0.0
        return _Stretch(len(works), parts.total(), parts, weights)

    def _seconds(self, work: Work) -> tuple[float, str]:
        known = self._known.get(work)
        if known is None:
            seconds, bound = self._chip.seconds(self._lowered(work))
            known = self._known[work] = max(seconds, self._pace.kernel), bound
        return known

    def _lowered(self, work: Work) -> Work:
        """Return a product as it runs in fewer bits."""
        return replace(work, dtype=self._low) if self._low and work.kind == "product" and len(work.shape) == 3 else work

"""How long an action takes, by replaying its events on streams.

The host launches one operation after the other, and runs ahead of the chip. The chip computes in one stream; each wire
is another. A tensor-parallel collective stops the computation until it is done; gathering and reducing of sharded
parameters goes on beside it, and is waited for where its result is needed. So overlap is not a factor here: what is
hidden comes out of the order.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ...meter.work import Work
from .chip import Chip
from .links import Links
from .trace import Arrival, Event, Message, Place


@dataclass
class Timing:
    """The seconds of an action.

    Attributes:
        seconds: from its beginning until the chip and all wires are done.
        parts: of them, by what the chip did: "compute", "memory", "launch", or waited for: the name of a wire.
        weights: seconds of the products that make weights' gradients, which a zero-bubble schedule puts off.
        tail: seconds after its end until the wires are done, where other actions go on beside them.
        sent: seconds for which its busiest wire sends what no operation waits for.
    """

    seconds: float = 0.0
    parts: Counter[str] = field(default_factory=Counter)
    weights: float = 0.0
    tail: float = 0.0
    sent: float = 0.0


@dataclass(frozen=True)
class _Stretch:
    """Operations between two messages: how many, and the chip's seconds, by what bounds them."""

    operations: int
    seconds: float
    parts: Counter[str]
    weights: float


@dataclass(frozen=True)
class _Chunked:
    """A collective in as many chunks as there are ranks: all but one are sent while the product works on others."""

    message: Message
    beside: float  # the seconds of the product

    def exposed(self, links: Links) -> float:
        ranks = links[self.message.wire].ranks
        seconds = links.seconds(self.message)
        return seconds - min(seconds, self.beside) * (ranks - 1) / ranks


class Streams:
    """Replays events on one chip with its wires.

    Args:
        chip: which computes.
        links: of the layout's wires.
        low: dtype in which products run, where it is not that of their operands: "float8_e4m3fn", or "".
        launch: seconds in which the host launches an operation.
        overlap: whether tensor ranks' collectives go on in chunks, beside the product that needs or makes their tensor.
    """

    def __init__(self, chip: Chip, links: Links, low: str, launch: float, overlap: bool = False) -> None:
        self._chip, self._links, self._low, self._launch, self._overlap = chip, links, low, launch, overlap
        self._known: dict[Work, tuple[float, str]] = {}
        # By the id of a place's events, which are kept: else another list could get the id of one that is gone.
        self._stretches: dict[int, tuple[list[Event], list[_Summed]]] = {}

    def sending(self, messages: Iterable[Message]) -> float:
        """Return how long messages take, one after the other."""
        return sum(self._links.seconds(message) for message in messages)

    def run(self, places: Sequence[Place], waits: bool = True) -> Timing:
        """Return how long the places of an action take, one after the other; whether it `waits` for its wires."""
        timing = Timing()
        host = chip = copied = 0.0
        free: Counter[str] = Counter()  # wire -> when it is free again
        left: Counter[str] = Counter()  # wire -> seconds of what is only started here
        waiting: dict[str, list[tuple[str, float]]] = {}  # collective -> (wire, when it will be done)
        for place in places:
            for event in self._summed(place.events):
                if isinstance(event, _Chunked):
                    host += self._launch
                    exposed = event.exposed(self._links)
                    timing.parts[event.message.wire] += exposed
                    chip = max(host, chip) + exposed
                elif isinstance(event, _Stretch):
                    host += event.operations * self._launch
                    late = max(0.0, host - chip - event.seconds)
                    chip += event.seconds + late
                    timing.parts.update(event.parts)
                    timing.parts["launch"] += late
                    timing.weights += event.weights
                elif isinstance(event, Message):
                    host += self._launch
                    # What is gathered needs a buffer, which is free once the last gathering was copied out.
                    ready = max(host, copied) if event.collective == "all-gather" and not event.waits else chip
                    begun, seconds = max(ready, free[event.wire]), self._links.seconds(event)
                    done = free[event.wire] = begun + seconds
                    if event.waits:
                        timing.parts[event.wire] += done - chip
                        chip = done
                    else:
                        left[event.wire] += seconds
                        waiting.setdefault(event.collective, []).append((event.wire, done))
                elif waiting.get(event.collective):
                    wire, done = waiting[event.collective].pop(0)
                    timing.parts[wire] += max(0.0, done - chip)
                    chip = copied = max(chip, done)
        for wire, done in free.items():
            if waits:
                timing.parts[wire] += max(0.0, done - chip)
                chip = max(chip, done)
        timing.seconds = chip
        timing.tail = max([0.0, *(done - chip for done in free.values())])
        timing.sent = max([0.0, *left.values()])
        return timing

    def _summed(self, events: list[Event]) -> list["_Summed"]:
        """Return the events with what is computed between messages summed up; repeated places share theirs."""
        if id(events) in self._stretches:
            return self._stretches[id(events)][1]
        summed: list[_Summed] = []
        works: list[Work] = []
        for at, event in enumerate([*events, None]):
            if isinstance(event, Work):
                works.append(event)
                continue
            summed += [self._stretch(works)] if works else []
            summed += [self._chunked(event, events, at)] if event is not None else []
            works = []
        self._stretches[id(events)] = events, summed
        return summed

    def _chunked(self, event: Message | Arrival, events: list[Event], at: int) -> "_Summed":
        """Return the event, or its chunks: what is gathered enters the next product, what is reduced left the last."""
        if not (self._overlap and isinstance(event, Message) and event.wire == "tensor" and event.waits):
            return event
        near = events[at + 1 :] if event.collective == "all-gather" else reversed(events[:at])
        product = next((work for work in near if isinstance(work, Work) and work.kind == "matmul"), None)
        return _Chunked(event, self._seconds(product)[0] if product else 0.0)

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
            known = self._known[work] = self._chip.seconds(self._lowered(work))
        return known

    def _lowered(self, work: Work) -> Work:
        """Return a product as it runs in fewer bits; the head's stay in 16, as Megatron and torchao leave them."""
        narrow = work.kind == "matmul" and len(work.shape) == 3 and self._chip.vocabulary not in work.shape
        return replace(work, dtype=self._low) if self._low and narrow else work


_Summed = _Stretch | _Chunked | Message | Arrival

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
from .trace import Message, Place


@dataclass
class Timing:
    """The seconds of an action.

    Attributes:
        seconds: from its beginning until the chip and all wires are done.
        parts: of them, by what the chip did: "compute", "memory", "launch", or waited for: the name of a wire.
        sent: seconds in which each wire was busy.
        weights: seconds of the products that make weights' gradients, which a zero-bubble schedule puts off.
    """

    seconds: float = 0.0
    parts: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    weights: float = 0.0


class Streams:
    """Replays events on one chip with its wires.

    Args:
        roofline: of the chip.
        links: of the layout's wires.
        low: dtype in which products run, where it is not that of their operands: "float8_e4m3fn", or "".
        launch: seconds in which the host launches an operation.
    """

    def __init__(self, roofline: Roofline, links: Links, low: str, launch: float) -> None:
        self._chip, self._links, self._low, self._launch = replace(roofline, launch=0.0), links, low, launch
        self._known: dict[Work, tuple[float, str]] = {}

    def run(self, places: Sequence[Place]) -> Timing:
        """Return how long the places of an action take, one after the other."""
        timing = Timing()
        host = chip = copied = 0.0
        free: Counter[str] = Counter()  # wire -> when it is free again
        waiting: dict[str, list[tuple[str, float]]] = {}  # collective -> (wire, when it will be done)
        for place in places:
            for event in place.events:
                if isinstance(event, Work):
                    host += self._launch
                    seconds, bound = self._seconds(event)
                    timing.parts["launch"] += max(0.0, host - chip)
                    chip = max(chip, host) + seconds
                    timing.parts[bound] += seconds
                    timing.weights += seconds if event.layout == "tn" else 0.0
                elif isinstance(event, Message):
                    host += self._launch
                    # What is gathered needs a buffer, which is free once the last gathering was copied out.
                    ready = max(host, copied) if event.collective == "all-gather" and not event.waits else chip
                    begun = max(ready, free[event.wire])
                    seconds = self._links.seconds(event)
                    done = free[event.wire] = begun + seconds
                    timing.sent[event.wire] += seconds
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

    def _seconds(self, work: Work) -> tuple[float, str]:
        known = self._known.get(work)
        if known is None:
            known = self._known[work] = self._chip.seconds(self._lowered(work))
        return known

    def _lowered(self, work: Work) -> Work:
        """Return a product as it runs in fewer bits."""
        return replace(work, dtype=self._low) if self._low and work.kind == "product" and len(work.shape) == 3 else work

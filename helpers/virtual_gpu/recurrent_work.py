"""How long cuDNN's recurrent layers take, in which each time waits for the time before.

The products of all inputs are done at once, and so are the gradients of the weights. Those of the states are as small
as the batch, and one after the other: for each, the weights are read again, and a few kernels start. How many, was
fitted to the layers that DeepBench measured on a V100 (tests/virtual_gpu/v100_recurrent.json).
"""

import math
from collections import Counter
from dataclasses import dataclass, fields

from ..meter.roofline import Roofline
from ..meter.work import Work
from ..planner.catalog.rooflines import fitted_rates

_KERNELS = 4  # latencies that a time takes: a product, what splits and joins it, and the gates
_ITEM = {"float16": 2, "float64": 8}


@dataclass(frozen=True, slots=True)
class RecurrentWork(Work):
    """The work of one pass through all layers and times.

    Attributes:
        turns: products of a state, one after the other: one for each time, layer and direction.
        turn: the shape of each: (batch, gates × hidden, hidden).
    """

    turns: int = 0
    turn: tuple[int, int, int] = (1, 1, 1)


def recurrent_work(work: Work, turns: int, turn: tuple[int, int, int]) -> RecurrentWork:
    """Return the work of a pass, of which only the sum was known."""
    return RecurrentWork(*(getattr(work, field.name) for field in fields(Work)), turns=turns, turn=turn)


def recurrent_seconds(work: RecurrentWork, roofline: Roofline) -> Counter[str]:
    """Return the seconds of a pass by what bounds them: "compute", "memory" or "launch"."""
    m, n, k = work.turn
    flops = 2 * m * n * k
    dtype = work.dtype if work.dtype in roofline.dtypes else "float32"
    parts = {
        "compute": flops / roofline.peak(dtype),
        "memory": roofline.traffic_seconds(n * k * _ITEM.get(work.dtype, 4)),
    }
    slower = max(parts, key=lambda part: parts[part])
    seconds = Counter({slower: work.turns * parts[slower]})
    seconds["launch"] += work.turns * _KERNELS * fitted_rates().latency
    at_once = max(0, work.flops - work.turns * flops)
    seconds["compute"] += at_once / (2 * math.prod(work.shape)) * roofline.product_seconds(work.shape, dtype)
    return seconds

"""The roofline of this machine, measured in seconds.

What an operation with nothing to do takes is subtracted from all others: `Roofline.seconds` adds the launch again.
"""

import datetime
import statistics
from collections import defaultdict
from typing import Any

import torch

from ...core.device import sixteen_bit_dtype
from ..work import Work
from .bench import Bench
from .kept import machine_name
from .link import Link
from .roofline import Roofline, product_key
from .stopwatch import Stopwatch

ROUNDS = 5


def measure_roofline(device: torch.device) -> Roofline:
    """Measure what `device` can do, but for its link to others: seconds on a quiet machine, more on a busy one."""
    bench = Bench(device, tuple(dict.fromkeys((torch.float32, sixteen_bit_dtype(device)))))
    for _ in range(ROUNDS):
        bench.round()
    return roofline_of(bench)


def roofline_of(bench: Bench) -> Roofline:
    """Return what the rounds of a bench amount to."""
    watch = bench.watch
    empty = watch.seconds("empty")
    return Roofline(
        machine=machine_name(bench.device),
        device=bench.device.type,
        bandwidth=_traffic(watch, empty),
        launch=watch.seconds("tiny step") / bench.operations_of_tiny_step,
        dispatch=empty,
        recording=max(0.0, watch.seconds("recorded") - empty),
        host_copy=_copies(watch, pinned=True),
        pageable_copy=_copies(watch, pinned=False),
        spread=watch.spread,
        date=datetime.date.today().isoformat(),
        **_rates(watch, empty),
    )


def _beyond(seconds: float, empty: float) -> float:
    """Return the seconds beyond those of an empty operation; where noise leaves too little, half of all."""
    return max(seconds - empty, seconds / 2)


def _traffic(watch: Stopwatch, empty: float) -> list[tuple[int, float]]:
    pieces = [piece for piece in watch.pieces if isinstance(piece, tuple) and piece[0] == "traffic"]
    return [(nbytes, nbytes / _beyond(watch.seconds(("traffic", nbytes)), empty)) for _, nbytes in pieces]


def _copies(watch: Stopwatch, pinned: bool) -> Link | None:
    pieces = [piece for piece in watch.pieces if isinstance(piece, tuple) and piece[:2] == ("copy", pinned)]
    return Link.fitted([(piece[2], watch.seconds(piece)) for piece in pieces]) if pieces else None


def _rates(watch: Stopwatch, empty: float) -> dict[str, Any]:
    """Return `products`, `kernels` and `passes` of the roofline."""
    products: dict[str, list[tuple[int, int, int, float]]] = defaultdict(list)
    others: dict[tuple[str, str, str], dict[Any, list[float]]] = defaultdict(lambda: defaultdict(list))
    for work in watch.pieces:
        if not isinstance(work, Work):
            continue
        alone = work.kind == "matmul"  # timed by itself; all else was timed where it is
        seconds = _beyond(watch.seconds(work), empty if alone else watch.seconds("timed"))
        if work.name == "aten.mm":
            products[product_key(work.dtype, work.layout)].append((*work.shape, work.flops / seconds))
        elif work.flops:
            others["kernels", work.name, work.dtype][work.shape[-3:]].append(work.flops / seconds)
        elif work.bytes:
            others["passes", work.name, work.dtype][(work.bytes,)].append(work.bytes / seconds)
    rates: dict[str, Any] = {"products": dict(products), "kernels": {}, "passes": {}}
    for (part, name, dtype), by_size in others.items():  # one size can be there twice: attention, causal and not
        rates[part].setdefault(name, {})[dtype] = [(*size, statistics.fmean(by_size[size])) for size in sorted(by_size)]
    return rates

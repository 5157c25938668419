"""The roofline of a machine: the law that says how long an operation takes.

An operation multiplies and it moves bytes, at the same time; so it takes as long as the slower of the two, and the
launch besides (Williams, Waterman and Patterson 2009). How fast a machine multiplies depends on the shape: a product
with a side of 16 cannot keep it busy. How fast it moves bytes depends on their number: what fits the cache need not
come from memory.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ...core.table import text_table
from ..work import Work
from .interpolation import Curve, Rates, near_rates, on_curve
from .link import Link
from .rows import roofline_rows
from .traits import trait_of


@dataclass(frozen=True)
class Roofline:
    """What a machine can do. Rates are in FLOP/s and bytes/s, times in seconds, dtypes are named as PyTorch names them.

    Attributes:
        machine: whose roofline it is: device, threads and version of PyTorch, or the name of a GPU in the catalog.
        device: "cpu", "cuda" or "mps".
        products: of matrices, by dtype: (m, n, k, FLOP/s) of (m, k) by (k, n). Where it matters how they lie in memory,
            also by layout: "bfloat16 nt".
        bandwidth: (bytes that an operation reads and writes, bytes/s), in and out of cache.
        launch: what an operation of a training step costs besides: Python, autograd and the dispatcher.
        dispatch: what an empty operation costs by itself, without a step around it.
        recording: what autograd's record of it costs in addition.
        kernels: like `products`, of what else multiplies (convolution, attention), by name and dtype. The shape is that
            of the product which it amounts to.
        passes: like `bandwidth`, of operations that may take longer than their bytes do (GELU, norms), by name and
            dtype.
        host_copy, pageable_copy: from the host's memory to a GPU, pinned and pageable; None for a CPU.
        link: the process group: all-reduce of 2 ranks; None where it was not measured.
        spread: how far the runs of one measurement lay apart: interquartile range / median, of the middle measurement.
        date: when it was measured, as in 2030-12-31.
    """

    machine: str
    device: str
    products: Mapping[str, Rates]
    bandwidth: Curve
    launch: float
    dispatch: float = 0.0
    recording: float = 0.0
    kernels: Mapping[str, Mapping[str, Rates]] = field(default_factory=dict)
    passes: Mapping[str, Mapping[str, Curve]] = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)
    host_copy: Link | None = None
    pageable_copy: Link | None = None
    link: Link | None = None
    spread: float = 0.0
    date: str = ""

    @property
    def dtypes(self) -> list[str]:
        """What products were measured in."""
        return list(dict.fromkeys(key.split()[0] for key in self.products))

    def peak(self, dtype: str) -> float:
        """Return the largest measured rate of matrix products in `dtype`."""
        return max(rate for key, rates in self.products.items() if key.split()[0] == dtype for *_, rate in rates)

    def product_seconds(self, shape: tuple[int, ...], dtype: str, layout: str = "nn") -> float:
        """Return the seconds of a product of (m, k) by (k, n), launch not counted; never faster than the best measured.

        Args:
            shape: (m, n, k), or (b, m, n, k) for b of them in one operation, which fill the machine together.
            dtype: e.g. "bfloat16". One that was not measured counts as "float32".
            layout: "t" for a matrix that lies in memory by columns; see `Work.layout`.
        """
        flops = 2 * math.prod(shape)
        return flops / near_rates(self._products(dtype, layout), _sides(shape, flops))

    def traffic_seconds(self, nbytes: float) -> float:
        """Return the seconds of reading and writing `nbytes` bytes in one operation, launch not counted."""
        return nbytes / on_curve(self.bandwidth, nbytes)

    def seconds(self, work: Work) -> tuple[float, str]:
        """Return how long an operation takes, and what bounds it: "compute", "memory" or "launch".

        An operation that only passes over its numbers is bound by "memory", even if it does it more slowly than memory
        could (GELU).
        """
        parts = {"compute": self._multiplying(work), "memory": self._passing(work)}
        slower = max(parts.values()) * self._factor(work)
        bound = max({**parts, "launch": self.launch}.items(), key=lambda part: part[1])[0]
        return slower + self.launch, bound

    def _factor(self, work: Work) -> float:
        trait = trait_of(work) if self.factors else None
        return self.factors.get(trait, 1.0) if trait else 1.0

    def _multiplying(self, work: Work) -> float:
        if not work.flops:
            return 0.0
        measured = self.kernels.get(work.name, {}).get(work.dtype)
        if measured:  # a batch was measured as one, by the shape of its matrices
            return work.flops / near_rates(measured, _sides(work.shape[-3:], work.flops))
        return work.flops / near_rates(self._products(work.dtype, work.layout), _sides(work.shape, work.flops))

    def _passing(self, work: Work) -> float:
        curve = self.passes.get(work.name, {}).get(work.dtype) if not work.flops else None
        return max(self.traffic_seconds(work.bytes), work.bytes / on_curve(curve, work.bytes) if curve else 0.0)

    def _products(self, dtype: str, layout: str) -> Rates:
        known = (product_key(dtype, layout), dtype, "float32")
        return next(self.products[key] for key in known if key in self.products)

    def __str__(self) -> str:
        return text_table([("measured", self.machine), *roofline_rows(self)])

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Roofline":
        """Return what `to_json` wrote.

        Raises:
            ValueError, TypeError: it is not a roofline.
        """
        values: dict[str, Any] = dict(json.loads(text))
        for name in ("host_copy", "pageable_copy", "link"):
            values[name] = Link(**values[name]) if values.get(name) else None
        return cls(**values)


def product_key(dtype: str, layout: str) -> str:
    """Return under which name products of a dtype and a layout (see `Work`) are in `Roofline.products`."""
    return dtype if layout in ("", "nn") else f"{dtype} {layout}"


def _sides(shape: tuple[int, ...], flops: float) -> tuple[int, int, int]:
    """Return the (m, n, k) whose rate an operation reaches.

    One launch does all products of a batch, so they have the rate of one with as many FLOPs, and not that of each. It
    counts as a cube, and so does what has no known shape.
    """
    if len(shape) == 3:
        m, n, k = shape
        return m, n, k
    side = max(1, round((flops / 2) ** (1 / 3)))
    return side, side, side

"""A device on the bench: each round measures everything once more."""

import itertools
import math
import statistics
import time
from collections import defaultdict

import torch
from torch import Tensor

from ...core.precision import fp32_computed_as, has_tf32
from ..work import Work
from .interpolation import near_rates
from .stopwatch import LONGEST, Stopwatch
from .subjects import Subject, subjects, tiny_step
from .timed import timed

_SIDES = {"cpu": (4, 16, 64, 256, 1024), "gpu": (16, 128, 1024, 8192)}
_BATCHED_SIDES = {"cpu": (16, 64, 256), "gpu": (64, 256, 1024)}
_BATCH = 8  # matrices in a batched product
_VECTORS = {"cpu": [4096 * 4**i for i in range(8)], "gpu": [4096 * 4**i for i in range(9)]}  # bytes, from 4 KiB
_MESSAGES = [1024 * 4**i for i in range(9)]  # bytes, 1 KiB to 64 MiB
_LAYOUTS = ("nn", "nt", "tn")  # of the three products of a linear layer
_SIDE_COMPARED = 256
_APART = 3  # times: where one layout is that much faster than another, each is measured in all shapes
_TOO_LONG = 0.3  # seconds: a layer that takes longer runs once


class Bench:
    """Measures one `device` in rounds. What was measured, and in how many seconds, is in its `watch`.

    Pieces of the watch: the `Work` of each operation, ("traffic", bytes) of an addition, ("copy", pinned, bytes) to the
    GPU, "empty", "recorded" and "timed" of an operation with nothing to do, "tiny step".
    """

    def __init__(self, device: torch.device, dtypes: tuple[torch.dtype, ...]) -> None:
        self.watch = Stopwatch()
        self.device, self._dtypes = device, dtypes
        self._size = "cpu" if device.type == "cpu" else "gpu"
        self._layouts: dict[str, tuple[str, ...]] = {}  # of each dtype, those to be measured
        self._warm: set[tuple[object, ...]] = set()  # layers that have been run: the first time is slow
        self._once: set[tuple[object, ...]] = set()  # layers that are not run again
        self._shapes: dict[tuple[str, str], list[tuple[int, int, int]]] = {}  # of each dtype and layout, likewise
        largest = 2 * _SIDES[self._size][-1] ** 2
        numbers = torch.randn(largest, device=device)
        self._numbers = {dtype: numbers.to(dtype).view(2, -1) for dtype in dtypes}  # for the two matrices of a product
        self._tiny_step = tiny_step(device)
        self._tiny_step()  # makes the optimizer's state
        self.operations_of_tiny_step = len(timed(self._tiny_step, device))

    def round(self) -> None:
        """Measure everything once more."""
        self._empty()
        for dtype in self._dtypes:
            self._products(dtype, _name(dtype))
            self._batched_products(dtype)
            for name, subject in subjects(self.device, dtype):
                self._layer(name, subject)
        if has_tf32(self.device):
            with fp32_computed_as("tf32"):
                self._products(torch.float32, "tf32")
        self._traffic()
        if self.device.type == "cuda":
            self._copies()

    def _empty(self) -> None:
        """Time operations that do next to nothing."""
        number = torch.ones((), device=self.device)
        recorded = torch.ones((), device=self.device, requires_grad=True)
        self.watch.time("empty", lambda: number.add(number))
        self.watch.time("recorded", lambda: recorded.add(recorded))
        for operation in timed(lambda: [number.add(number) for _ in range(100)], self.device)[10:]:
            self.watch.add("timed", operation.seconds)
        self.watch.time("tiny step", self._tiny_step)

    def _products(self, dtype: torch.dtype, name: str) -> None:
        """Time products of all shapes that can be made of a few sides."""
        if name not in self._layouts:
            self._layouts[name] = self._worth_measuring(dtype)
        for layout in self._layouts[name]:
            if (name, layout) in self._shapes:
                for shape in self._shapes[name, layout]:
                    self._product(dtype, name, shape, layout)
            else:
                self._shapes[name, layout] = self._first_products(dtype, name, layout)

    def _worth_measuring(self, dtype: torch.dtype) -> tuple[str, ...]:
        """Return all layouts if it matters much in which the matrices are, else the plain one."""
        watch = Stopwatch()
        for _ in range(3):
            for layout in _LAYOUTS:
                watch.time(layout, self._call(dtype, (_SIDE_COMPARED,) * 3, layout))
        seconds = [watch.seconds(layout) for layout in _LAYOUTS]
        return _LAYOUTS if max(seconds) > _APART * min(seconds) else _LAYOUTS[:1]

    def _first_products(self, dtype: torch.dtype, name: str, layout: str) -> list[tuple[int, int, int]]:
        """Time products, the smaller ones first, and return their shapes.

        One that would take too long is left out: smaller ones are as fast.
        """
        known: list[tuple[int, int, int, float]] = []
        for m, n, k in sorted(itertools.product(_SIDES[self._size], repeat=3), key=math.prod):
            if not known or 2 * m * n * k / near_rates(known, (m, n, k)) < LONGEST:
                known.append((m, n, k, self._product(dtype, name, (m, n, k), layout)))
        return [(m, n, k) for m, n, k, _ in known]

    def _product(self, dtype: torch.dtype, name: str, shape: tuple[int, int, int], layout: str) -> float:
        """Time a product and return its FLOP/s."""
        work = Work("aten.mm", "matmul", 2 * math.prod(shape), 0, name, shape, layout)
        if not self.watch.is_slow(work):
            self.watch.time(work, self._call(dtype, shape, layout))
        return work.flops / self.watch.seconds(work)

    def _call(self, dtype: torch.dtype, shape: tuple[int, int, int], layout: str) -> Subject:
        """Return a function that multiplies (m, k) by (k, n)."""
        m, n, k = shape
        left, right = self._numbers[dtype]
        a, b = _matrix(left, layout[0], m, k), _matrix(right, layout[1], k, n)
        return lambda: a @ b

    def _batched_products(self, dtype: torch.dtype) -> None:
        """Time several products in one operation."""
        for m, n, k in itertools.product(_BATCHED_SIDES[self._size], repeat=3):
            work = Work("aten.bmm", "matmul", 2 * _BATCH * m * n * k, 0, _name(dtype), (_BATCH, m, n, k), "nn")
            if not self.watch.is_slow(work):
                a, b = (torch.randn(_BATCH, *sides, device=self.device).to(dtype) for sides in ((m, k), (k, n)))
                self.watch.time(work, lambda a=a, b=b: torch.bmm(a, b))

    def _layer(self, name: tuple[object, ...], subject: Subject) -> None:
        """Time each operation of a layer where it is; of equal ones, the mean."""
        if name in self._once:
            return
        began = time.perf_counter()
        operations = timed(subject, self.device)
        if time.perf_counter() - began > _TOO_LONG:
            self._once.add(name)
        elif name not in self._warm:
            operations = timed(subject, self.device)
        self._warm.add(name)
        by_work = defaultdict(list)
        for work, seconds in operations:
            by_work[work].append(seconds)
        for work, runs in by_work.items():
            self.watch.add(work, statistics.fmean(runs))

    def _traffic(self) -> None:
        """Time additions, of which each number is read and written but once."""
        for nbytes in _VECTORS[self._size]:
            a, b, c = (torch.ones(nbytes // 4, device=self.device) for _ in range(3))
            self.watch.time(("traffic", 3 * nbytes), lambda a=a, b=b, c=c: torch.add(a, b, out=c))

    def _copies(self) -> None:
        """Time copies from the host's memory to the GPU, pinned and pageable."""
        for pinned, nbytes in itertools.product((True, False), _MESSAGES):
            host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=pinned)
            copy = ("copy", pinned, nbytes)
            self.watch.time(copy, lambda host=host, pinned=pinned: host.to(self.device, non_blocking=pinned))


def _matrix(numbers: Tensor, lies: str, rows: int, columns: int) -> Tensor:
    """Return a matrix of the first of `numbers`, by rows ("n") or by columns ("t")."""
    taken = numbers[: rows * columns]
    return taken.view(columns, rows).t() if lies == "t" else taken.view(rows, columns)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

"""What was measured on a machine: how fast its matmuls, attention, memory and links are, shape by shape.

A figure that was measured replaces the forecast's. Between measured shapes the nearest decide (Shepard 1968, distances
in logarithms of the sides). What was not measured moves with its kind: FP8 matmuls by as much as those in 16 bits.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ...meter.work import Work

FORWARD, OF_INPUT, OF_WEIGHT = "forward", "input", "weight"
PASSES = (FORWARD, OF_INPUT, OF_WEIGHT)
ATTENTION = ("forward", "backward")
_PLAIN = {"nt": FORWARD, "nn": OF_INPUT, "tn": OF_WEIGHT}
_GROUPED = {"nn": FORWARD, "nt": OF_INPUT, "tn": OF_WEIGHT}
_LONG, _SEVERAL = 1e-3, 3  # seconds from which on the power's limit slows a kernel, and matmuls that show how far
_POWER = 4  # how fast a point's weight falls with its distance: enough for the nearest to decide


@dataclass(frozen=True)
class Matmul:
    """A measured matmul of (m, k) by (k, n), or of `groups` such: FLOP/s. `which` pass of a layer; "" for any."""

    m: int
    n: int
    k: int
    rate: float
    dtype: str = "bfloat16"
    which: str = ""
    groups: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """As a `Work` has it."""
        return (self.groups,) * (self.groups > 1) + (self.m, self.n, self.k)


@dataclass(frozen=True)
class Attention:
    """Measured causal attention: FLOP/s, of which only those count that the causal half needs.

    Attributes:
        sequences: sequences times heads.
        seq, head: tokens of each, and numbers in a head.
        which: "forward" or "backward".
    """

    sequences: int
    seq: int
    head: int
    rate: float
    which: str


@dataclass(frozen=True)
class Wire:
    """A collective of so many ranks: seconds before the first byte, and "bus" bytes/s as nccl-tests counts them.

    `apart`: measured while other groups sent, too, whose ranks lie between its own.
    """

    collective: str
    ranks: int
    nodes: int
    latency: float
    bandwidth: float
    apart: bool = False

    def bandwidth_of(self, in_node: float) -> float:
        """Return the bus bandwidth where `in_node` ranks of each node take part.

        A ring over nodes has as many ways out of a node as it has ranks there (one network port for each GPU); between
        two ranks, and where each sends to all, the bus counts one GPU's port.
        """
        if self.nodes == 1 or self.collective in ("all-to-all", "send"):
            return self.bandwidth
        return self.bandwidth * in_node / (self.ranks / self.nodes)


@dataclass(frozen=True, eq=False)
class Measured:
    """Tables of one machine; what is empty was not measured there.

    Attributes:
        matmuls, attention, wires: see there.
        memory: bytes/s that kernels reach which only pass over their data; 0 if unknown.
        kernel: seconds that such a kernel takes besides its bytes; 0 if unknown.
        launch: seconds in which the host launches an operation; 0 if unknown.
        pace: by what seconds are multiplied so that forecasts meet the measured runs.
    """

    matmuls: Sequence[Matmul] = ()
    attention: Sequence[Attention] = ()
    wires: Sequence[Wire] = ()
    memory: float = 0.0
    kernel: float = 0.0
    launch: float = 0.0
    pace: float = 1.0
    _known: dict[object, float | None] = field(default_factory=dict, repr=False)

    def matmul_rate(self, work: Work, catalog: Callable[[tuple[int, ...], str], float]) -> float | None:
        """Return the FLOP/s of a matmul, or None where the table does not say.

        Args:
            work: the operation; its layout tells the pass, its shape whether matmuls are grouped.
            catalog: FLOP/s that the forecast gives a shape and a dtype.
        """
        key = (work.shape, work.dtype, work.layout)
        if key not in self._known:
            self._known[key] = self._matmul_rate(work, catalog)
        return self._known[key]

    def _matmul_rate(self, work: Work, catalog: Callable[[tuple[int, ...], str], float]) -> float | None:
        grouped = len(work.shape) == 4
        which = (_GROUPED if grouped else _PLAIN).get(work.layout, "")
        sides = work.shape[-3:]
        alike = [each for each in self.matmuls if (each.groups > 1) == grouped]
        mine = [each for each in alike if each.dtype == work.dtype]
        near = [each for each in mine if each.which == which] or [each for each in mine if not each.which] or mine
        if near:
            return _near([((each.m, each.n, each.k), each.rate) for each in near], sides)
        moved = self.moved(catalog)
        other = moved.get(work.dtype) or (statistics.median(moved.values()) if moved and not grouped else None)
        return None if other is None else other * catalog(work.shape, work.dtype)

    def sustained(self, dtype: str) -> float:
        """Return the FLOP/s that a chip keeps up: the median of the matmuls that take long; infinity if few do.

        A GPU that is busy for a millisecond slows down to what its power allows.
        """
        if dtype not in self._known:
            alike = [each for each in self.matmuls if each.groups == 1 and each.dtype == dtype]
            long = [each.rate for each in alike if 2.0 * each.m * each.n * each.k >= _LONG * each.rate]
            self._known[dtype] = statistics.median(long) if len(long) >= _SEVERAL else math.inf
        return self._known[dtype] or math.inf

    def moved(self, catalog: Callable[[tuple[int, ...], str], float]) -> dict[str, float]:
        """Return measured / forecast of the matmuls by dtype: the median over the shapes. Grouped ones do not count."""
        ratios: dict[str, list[float]] = {}
        for each in self.matmuls:
            if each.groups == 1:
                ratios.setdefault(each.dtype, []).append(each.rate / catalog((each.m, each.n, each.k), each.dtype))
        return {dtype: statistics.median(mine) for dtype, mine in ratios.items()}

    def attention_rate(self, shape: tuple[int, ...], backward: bool) -> float | None:
        """Return the FLOP/s of attention on (sequences x heads, queries, keys, head), or None."""
        which = ATTENTION[backward]
        if (shape, which) not in self._known:
            near = [each for each in self.attention if each.which == which]
            points = [((each.sequences, each.seq, each.head), each.rate) for each in near]
            sides = (shape[0], max(shape[1:3]), shape[3]) if len(shape) == 4 else None
            self._known[shape, which] = _near(points, sides) if points and sides else None
        return self._known[shape, which]

    def wire(self, collective: str, ranks: int, nodes: int, apart: bool = False) -> Wire | None:
        """Return what was measured of a collective with about so many ranks; of another one, if this was not.

        Args:
            apart: whether ranks of other groups lie between those of this one.
        """
        near = [each for each in self.wires if (each.nodes > 1) == (nodes > 1)]
        alone = [each for each in near if not each.apart]
        mine = [each for each in alone if each.collective == collective] or alone
        if apart:
            mine = [each for each in near if each.apart and each.collective == collective] or mine
        return min(mine, key=lambda each: abs(math.log(each.ranks / ranks)), default=None)


def _near(points: Sequence[tuple[tuple[int, ...], float]], sides: tuple[int, ...]) -> float:
    """Return the mean of the rates, weighted by nearness; the rate itself of a shape that was measured."""
    total = weights = 0.0
    for point, rate in points:
        distance = sum(math.log(p / s) ** 2 for p, s in zip(point, sides, strict=True))
        if not distance:
            same = [rate for other, rate in points if other == point]
            return statistics.fmean(same)
        weight = distance ** (-_POWER / 2)
        total += weight * math.log(rate)
        weights += weight
    return math.exp(total / weights)


def moves(measured: Measured, forecast: Mapping[str, float]) -> list[str]:
    """Return in words by how much each part moved: measured / forecast.

    Args:
        measured: tables.
        forecast: what the forecast has: "attention", "memory", "inside", "outside" and "launch"; and matmuls' ratios
            under "matmul" and a dtype.
    """
    words = [f"matmuls in {name.split()[1]} x {ratio:.2f}" for name, ratio in forecast.items() if "matmul " in name]
    if measured.attention and forecast.get("attention"):
        rate = statistics.median(each.rate for each in measured.attention)
        words.append(f"attention x {rate / forecast['attention']:.2f}")
    if measured.memory:
        words.append(f"memory x {measured.memory / forecast['memory']:.2f}")
    for name, many in (("inside", False), ("outside", True)):
        rates = [each.bandwidth_of(1) for each in measured.wires if (each.nodes > 1) == many]
        if rates:
            words.append(f"links {name} a node x {statistics.median(rates) / forecast[name]:.2f}")
    if measured.launch:
        words.append(f"launches x {measured.launch / forecast['launch']:.2f} of their seconds")
    if measured.pace != 1:
        words.append(f"all seconds x {measured.pace:.2f}, by the runs of the file")
    return words

"""How long an all-gather, a reduce-scatter or an all-reduce takes: NCCL's latency, and bytes over bandwidth.

This is an alpha-beta model whose alpha and share of the bandwidth depend on the protocol. A ring passes each byte
through every rank, so its latency grows with the ranks, and faster where they are on different nodes. All-reduces may
take two trees instead, whose latency grows with the logarithm of the nodes. Three protocols trade bandwidth for
latency: LL flags every 4 bytes, LL128 every 120, Simple none, and synchronizes buffers. NCCL takes the fastest by its
own model, whose constants stand here: src/graph/tuning.cc of NVIDIA/nccl.
"""

import math
from dataclasses import dataclass

from .collective import Collective


@dataclass(frozen=True)
class Protocol:
    """A protocol of an algorithm: microseconds to begin, per step inside a node and between nodes, share of the bus."""

    base: float
    inside: float
    outside: float
    share: float


RING = (Protocol(3.6, 0.47, 2.7, 0.25), Protocol(10.0, 1.9, 4.0, 0.92), Protocol(8.4, 3.4, 9.6, 1.0))
TREE = (Protocol(4.4, 0.52, 5.0, 0.9 / 3.8), Protocol(4.4, 1.2, 8.5, 0.9 * 0.915), Protocol(0.0, 28.0, 50.0, 0.9))
_MICRO = 1e-6


def moved_bytes(what: Collective, nbytes: float, ranks: int) -> float:
    """Return the bytes that pass a rank's link, as nccl-tests' bus bandwidth counts them.

    An all-gather or a reduce-scatter over N ranks moves (N - 1) / N of the whole tensor, an all-reduce twice as much.
    """
    if what in (Collective.SHIFT, Collective.SEND):
        return nbytes
    return nbytes * (ranks - 1) / ranks * (2 if what is Collective.ALL_REDUCE else 1)


def collective_seconds(what: Collective, nbytes: float, ranks: int, nodes: int, bandwidth: float) -> float:
    """Return the seconds of an all-gather, a reduce-scatter, or an all-reduce, which is one of each.

    Args:
        what: of the three.
        nbytes: of the whole tensor.
        ranks, nodes: that take part.
        bandwidth: bytes/s of the slowest link between them.
    """
    there = moved_bytes(what, nbytes, ranks), ranks, nodes, bandwidth
    if what is Collective.ALL_REDUCE:
        return min(ring_seconds(*there, passes=2), tree_seconds(*there))
    return ring_seconds(*there)


def ring_seconds(moved: float, ranks: int, nodes: int, bandwidth: float, passes: int = 1) -> float:
    """Return the seconds of a ring: all-gather, reduce-scatter, or with two passes all-reduce.

    Args:
        moved: bytes that pass each rank (`moved_bytes`).
        ranks, nodes: on the ring.
        bandwidth: bytes/s of the slowest link on it.
        passes: how often the ring is gone around.
    """
    far, near = passes * (nodes - 1), passes * (ranks - nodes)
    return min(
        _MICRO * (each.base + near * each.inside + far * each.outside) + moved / (each.share * bandwidth)
        for each in RING
    )


def tree_seconds(moved: float, ranks: int, nodes: int, bandwidth: float) -> float:
    """Return the seconds of an all-reduce along two trees; see `ring_seconds`."""
    near, far = 2 * (ranks / nodes - 1), 2 * math.log2(max(1, nodes))
    return min(
        _MICRO * (each.base + near * each.inside + far * each.outside) + moved / (each.share * bandwidth)
        for each in TREE
    )

"""How long an all-gather, a reduce-scatter or an all-reduce takes: NCCL's latency, and bytes over bandwidth.

This is an alpha-beta model whose alpha and share of the bandwidth depend on the protocol. A ring passes each byte
through every rank, so its latency grows with the ranks, and faster where they are on different nodes. All-reduces may
take two trees instead, whose latency grows with the logarithm of the nodes. Three protocols trade bandwidth for
latency: LL flags every 4 bytes, LL128 every 120, Simple none, and synchronizes buffers. NCCL takes the fastest by its
own model, whose constants stand here: src/graph/tuning.cc of NVIDIA/nccl.
"""

import math
from dataclasses import dataclass


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


def ring_seconds(moved: float, ranks: int, nodes: int, bandwidth: float, passes: int = 1) -> float:
    """Return the seconds of a ring: all-gather, reduce-scatter, or with two passes all-reduce.

    Args:
        moved: bytes that pass each rank.
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

"""Over which link a collective runs, and so how long it takes there: `Link.seconds`.

Which link a wire runs over follows from how the grid of ranks lies on the nodes: tensor ranks are neighbors, then
context, shard, replicate and pipeline ranks. A ring over several nodes leaves a node through as many network ports as
the wire has ranks there. The bytes that a ring moves are those of NCCL's documentation of "bus bandwidth".
"""

import math
from dataclasses import dataclass, replace

from ..catalog.clusters import Cluster
from ..catalog.layout_rates import LayoutRates
from ..rates.measured import Measured
from .collective import Collective
from .collective_seconds import collective_seconds, moved_bytes
from .layout import Layout
from .trace import Message

_TWO = 8  # GPUs of a node with two processors


@dataclass(frozen=True)
class Link:
    """What a wire runs over.

    Attributes:
        ranks: on the wire.
        in_node: of them in one node.
        start: seconds before the first byte arrives, of what is sent to one rank, or to each directly.
        bandwidth: bytes/s that each rank passes on along a ring.
        inside, outside: bytes/s that a rank sends to others of its node, and to other nodes.
        measured: what the user's own machine takes, where it was measured.
        apart: whether ranks of other wires lie between those of this one.
    """

    ranks: int
    in_node: int
    start: float
    bandwidth: float
    inside: float
    outside: float
    measured: Measured | None = None
    apart: bool = False

    @property
    def nodes(self) -> int:
        """Nodes on the wire."""
        return math.ceil(self.ranks / self.in_node)

    def seconds(self, collective: Collective | str, nbytes: float) -> float:
        """Return how long a collective takes. nbytes: of the whole tensor (what is gathered, reduced, exchanged).

        Raises:
            ValueError: there is no such collective.
        """
        what = Collective(collective)
        if self.ranks == 1:
            return 0.0
        if self.measured is not None:
            name = "send" if what is Collective.SHIFT else what
            wire = self.measured.wire(name, self.ranks, self.nodes, self.apart)
            if wire is not None:
                bandwidth = wire.bandwidth_of(self.ranks / self.nodes)
                return self.measured.pace * (wire.latency + moved_bytes(what, nbytes, self.ranks) / bandwidth)
            return self.measured.pace * replace(self, measured=None).seconds(what, nbytes)
        match what:
            case Collective.SHIFT | Collective.SEND:
                return self.start + nbytes / self.bandwidth
            case Collective.ALL_TO_ALL:
                share = nbytes / self.ranks
                near = share * (self.in_node - 1) / self.inside
                far = share * (self.ranks - self.in_node) / self.outside
                return self.start + max(near, far)
            case _:
                return collective_seconds(what, nbytes, self.ranks, self.nodes, self.bandwidth)


class Links:
    """The links of a layout's wires on a cluster."""

    def __init__(self, layout: Layout, cluster: Cluster, rates: LayoutRates) -> None:
        sizes = {
            "tensor": layout.tensor,
            "context": layout.context,
            "shard": layout.shard,
            "replicate": layout.replicate,
            "pipeline": layout.pipeline,
        }
        strides = {}
        stride = 1
        for name, size in sizes.items():
            strides[name] = stride
            stride *= size
        self._wires = {name: (size, strides[name]) for name, size in sizes.items()}
        self._wires["shard"] = (layout.shards, layout.tensor)  # the context ranks have the same parameters
        self._wires["data"] = (layout.shards * layout.replicate, layout.tensor)
        self._wires["expert"] = (layout.expert * layout.expert_tensor, 1 if layout.sequence_parallel else layout.tensor)
        self._wires["expert shard"] = (layout.expert_shards, layout.expert * layout.expert_tensor)
        self._links = {name: link_of(*wire, cluster, rates) for name, wire in self._wires.items()}

    def __getitem__(self, wire: str) -> Link:
        return self._links[wire]

    def seconds(self, message: Message) -> float:
        """Return how long a message takes on its wire."""
        return self[message.wire].seconds(message.collective, message.nbytes)


def link_of(ranks: int, stride: int, cluster: Cluster, rates: LayoutRates) -> Link:
    """Return the link of so many ranks that lie `stride` apart on a cluster.

    A node of eight GPUs has two processors. Without NVLink, whatever goes from one half to the other passes the link
    between them, and `stride` groups whose ranks alternate pass it at once.
    """
    in_node = max(1, min(ranks, cluster.node // stride))
    inside, outside = cluster.inside * rates.inside, cluster.outside * rates.outside
    if cluster.inside <= cluster.gpu.link and in_node > 1 and cluster.node >= _TWO and in_node * stride > _TWO // 2:
        inside /= stride
    nodes = math.ceil(ranks / in_node)
    start = rates.start + rates.hop * math.log2(max(1, nodes))
    bandwidth = inside if nodes == 1 else min(inside, outside * in_node)
    return Link(ranks, in_node, start, bandwidth, inside, outside, rates.measured, stride > 1)

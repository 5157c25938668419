"""The collectives of a rank: which, how often, over how many ranks, how many bytes, and how long they would take."""

from collections import Counter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from ..planner.catalog.clusters import CLUSTERS, Cluster
from ..planner.catalog.layout_rates import layout_rates
from ..planner.layout.links import Link
from ..ranks.collectives import FUNCTIONAL, NAMES

_KINDS = {  # as the planner calls them
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
}


class Row(NamedTuple):
    """Collectives of one kind and size.

    Attributes:
        name: as in torch.distributed.
        ranks: that take part.
        stride: between the numbers of neighbors among them.
    """

    name: str
    ranks: int
    stride: int


class Traffic:
    """Counts collectives.

    Attributes:
        calls, nbytes: of each kind of collective, since the beginning.
        messages: how often each kind had a message of so many bytes; one counter for each step.
    """

    def __init__(self) -> None:
        self.calls: Counter[Row] = Counter()
        self.nbytes: Counter[Row] = Counter()
        self.messages: list[Counter[tuple[Row, int]]] = [Counter()]
        self._whole: Counter[tuple[Row, int]] | None = None  # the step's messages, if it has ended already

    def saw(self, func: Any, args: Any, result: Any) -> None:
        """Count an operation of the dispatcher, if it is a collective."""
        name = func._schema.name.partition("::")[2]
        if func.namespace == "c10d" and name in NAMES:
            plain, at = NAMES[name]
            size = 0 if at is None else _nbytes(args[at])
        elif func.namespace == "_c10d_functional" and name in FUNCTIONAL:
            plain, gathered = FUNCTIONAL[name]
            size = _nbytes(result if gathered else args[0])
        else:
            return
        ranks = group_ranks(args)
        row = Row(plain, len(ranks), ranks[1] - ranks[0] if len(ranks) > 1 else 1)
        self.calls[row] += 1
        self.nbytes[row] += size
        self.messages[-1][row, size] += 1

    def may_end_step(self) -> None:
        """Note that the step ends here, unless this is called again before `end_step`."""
        self._whole = self.messages[-1].copy()

    def end_step(self) -> None:
        """Let a new step begin: where `may_end_step` was called last, or else here."""
        whole = self.messages[-1] if self._whole is None else self._whole
        self.messages[-1:] = whole, self.messages[-1] - whole
        self._whole = None


def group_ranks(args: Any) -> list[int]:
    """Return the ranks of the group among the arguments of a collective."""
    for argument in args:
        if isinstance(argument, torch.ScriptObject):
            try:
                return dist.get_process_group_ranks(dist.ProcessGroup.unbox(argument))
            except (RuntimeError, TypeError):
                continue
        if isinstance(argument, dist.ProcessGroup):
            return dist.get_process_group_ranks(argument)
        if isinstance(argument, str):
            try:
                return dist.get_process_group_ranks(dist.distributed_c10d._resolve_process_group(argument))
            except (RuntimeError, ValueError, KeyError, AttributeError):
                continue
    return [0]


def seconds_of(messages: Counter[tuple[Row, int]], gpu: str, node: int) -> dict[Row, float] | None:
    """Return how long the collectives of a step take, one after the other; None where no cluster of the GPU is known.

    Args:
        messages: of the step.
        gpu: of the catalog.
        node: GPUs in a node.
    """
    cluster = next((each for each in CLUSTERS.values() if each.gpu.name == gpu), None)
    if cluster is None:
        return None
    rates, found = layout_rates(), Counter()
    for (row, size), times in messages.items():
        if row.name != "barrier":
            found[row] += times * _link(row, cluster, node, rates).seconds(_KINDS.get(row.name, "send"), size)
    return dict(found)


def _link(row: Row, cluster: Cluster, node: int, rates: Any) -> Link:
    in_node = max(1, min(row.ranks, node // max(1, row.stride)))
    inside, outside = cluster.inside * rates.inside, cluster.outside * rates.outside
    bandwidth = inside if in_node == row.ranks else min(inside, outside * in_node)
    return Link(row.ranks, in_node, rates.start, bandwidth, inside, outside)


def _nbytes(tensors: Any) -> int:
    return sum(tensor.nbytes for tensor in tree_leaves(tensors) if isinstance(tensor, torch.Tensor))

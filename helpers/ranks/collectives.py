"""What a rank sends to the others: each collective, how many bytes, in which order.

PyTorch sends every collective through its dispatcher, even those that DistributedDataParallel starts in the backward
pass; so a dispatch mode sees them all. The call itself goes to the network (NCCL, gloo) unchanged.
"""

from collections import Counter
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from ..meter.operations_seen import OperationWatch

# Names in the dispatcher -> names in torch.distributed, and which argument holds the whole message.
NAMES = {
    "allreduce_": ("all_reduce", 0),
    "allreduce_coalesced_": ("all_reduce", 0),
    "allgather_": ("all_gather", 0),
    "_allgather_base_": ("all_gather", 0),
    "allgather_into_tensor_coalesced_": ("all_gather", 0),
    "reduce_scatter_": ("reduce_scatter", 1),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "broadcast_": ("broadcast", 0),
    "reduce_": ("reduce", 0),
    "gather_": ("gather", 1),
    "scatter_": ("scatter", 0),
    "alltoall_": ("all_to_all", 0),
    "alltoall_base_": ("all_to_all", 0),
    "send": ("send", 0),
    "recv_": ("recv", 0),
    "recv_any_source_": ("recv", 0),
    "barrier": ("barrier", None),
}
# The same for the functional collectives of tensor parallelism: (name, whether the result is the whole message).
FUNCTIONAL = {
    "all_reduce": ("all_reduce", False),
    "all_reduce_": ("all_reduce", False),
    "all_gather_into_tensor": ("all_gather", True),
    "reduce_scatter_tensor": ("reduce_scatter", False),
    "all_to_all_single": ("all_to_all", False),
    "broadcast": ("broadcast", False),
}


class Collective(NamedTuple):
    """One call.

    Attributes:
        name: as in torch.distributed, without "_into_tensor" and the like.
        nbytes: of the whole message: what is reduced, or what all ranks together have gathered.
    """

    name: str
    nbytes: int

    @property
    def volume(self) -> int:
        """Bytes a rank sends in a ring of many ranks (Rajbhandari et al. 2020, section 7).

        An all-reduce is a reduce-scatter and an all-gather, so it costs twice its message. With N ranks, take
        (N - 1) / N of it.
        """
        return {"all_reduce": 2, "recv": 0, "barrier": 0}.get(self.name, 1) * self.nbytes


class Collectives(OperationWatch):
    """Records the collectives of the code in its `with` block, also while a memory meter runs.

    >>> with Collectives() as collectives:  # doctest: +SKIP
    ...     loss.backward()
    >>> collectives.count("all_reduce"), collectives.volume  # doctest: +SKIP
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Collective] = []

    def __enter__(self) -> "Collectives":
        self.calls.clear()
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Record the operation if it is a collective."""
        name = func._schema.name.partition("::")[2]
        if func.namespace == "c10d" and name in NAMES:
            plain, at = NAMES[name]
            self.calls.append(Collective(plain, 0 if at is None else _nbytes(args[at])))
        elif func.namespace == "_c10d_functional" and name in FUNCTIONAL:
            plain, gathered = FUNCTIONAL[name]
            self.calls.append(Collective(plain, _nbytes(result if gathered else args[0])))

    def count(self, name: str) -> int:
        """Return how often the collective called `name` was called."""
        return sum(call.name == name for call in self.calls)

    @property
    def volume(self) -> int:
        """Bytes this rank sends in a ring of many ranks, all calls together."""
        return sum(call.volume for call in self.calls)

    def __str__(self) -> str:
        times = Counter(self.calls)  # in the order in which they were first made
        return ", ".join(f"{n} x {c.name} of {c.nbytes:,} B" for c, n in times.items()) or "nothing was said"


def _nbytes(tensors: Any) -> int:
    return sum(t.nbytes for t in tree_leaves(tensors) if isinstance(t, torch.Tensor))

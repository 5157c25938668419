"""A spy on a ring: bytes sent to each neighbour and in FP32, other collectives, and the products of matrices."""

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from ...meter.flops import flops_of
from ...meter.operations_seen import OperationWatch
from ...ranks.collectives import NAMES
from ..base import Evidence

OUTSIDE = -1  # stands for the number of a rank that is not in the group
QUIET = ("send", "recv", "barrier")
WIDE = (torch.float32, torch.float64)


def _bytes(tensors: Any) -> int:
    return sum(tensor.nbytes for tensor in tree_leaves(tensors) if isinstance(tensor, torch.Tensor))


class RingSpy(OperationWatch):
    """Sees what the code in its `with` block sends and multiplies, as one rank of `group`.

    Attributes:
        sent: bytes by the number that the receiver has in the group, `OUTSIDE` if it is in none.
        wide: bytes of what was sent in FP32 or in more, to whomever.
        collectives: bytes by the name of the collective, those between two ranks left out.
        flops: of all products.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self._members = dist.get_process_group_ranks(group)
        self.sent: Counter[int] = Counter()
        self.wide = 0
        self.collectives: Counter[str] = Counter()
        self.flops = 0

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Note the operation."""
        name = func._schema.name.partition("::")[2]
        if func.namespace == "c10d":
            self._note(name, args)
        elif func.namespace == "_c10d_functional" and not name.startswith("wait"):
            self.collectives[name] += max(_bytes(args), _bytes(result))
        else:
            self.flops += flops_of(func, args, kwargs, result)

    def _note(self, name: str, args: tuple[Any, ...]) -> None:
        """Note a call of `torch.distributed`."""
        plain, at = NAMES.get(name, (name, 0))
        nbytes = 0 if at is None else _bytes(args[at])
        if plain == "send":
            ranks = dist.get_process_group_ranks(dist.ProcessGroup.unbox(args[1]))
            to = ranks[args[2]]
            self.sent[self._members.index(to) if to in self._members else OUTSIDE] += nbytes
            self.wide += _bytes([x for x in tree_leaves(args[0]) if x.dtype in WIDE])
        elif plain not in QUIET:
            self.collectives[plain] += nbytes

    @property
    def evidence(self) -> Evidence:
        """What was seen, so that it can be written down."""
        return {
            "sent": {str(rank): nbytes for rank, nbytes in self.sent.items()},
            "wide": self.wide,
            "collectives": dict(self.collectives),
            "flops": self.flops,
        }

"""What leaves a rank, and for whom: an all-to-all with uneven parts is not told by the size of its tensors.

Of a tensor that goes to all ranks in parts, the rank's own part stays. So the bytes that travel follow from the parts.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ...ranks.collectives import Collective, Collectives


class Parcel(NamedTuple):
    """One collective, as this rank sees it.

    Attributes:
        name: as in torch.distributed.
        left: bytes that this rank sends to others; for collectives other than an all-to-all, those of a ring.
        arrived: bytes that it gets from others.
        ranks: ranks that take part.
    """

    name: str
    left: int
    arrived: int
    ranks: tuple[int, ...]


class Parcels(Collectives):
    """Records what leaves this rank and what arrives, in the code of its `with` block.

    >>> with Parcels() as parcels:  # doctest: +SKIP
    ...     layer(x).sum().backward()
    >>> parcels.left, parcels.arrived  # doctest: +SKIP
    """

    def __init__(self) -> None:
        super().__init__()
        self.parcels: list[Parcel] = []

    def __enter__(self) -> "Parcels":
        self.parcels.clear()
        super().__enter__()
        return self

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """If the operation is a collective, note what left and what arrived."""
        before = len(self.calls)
        super().see(func, args, kwargs, result)
        self.parcels += [_parcel(call, args, result) for call in self.calls[before:]]

    @property
    def left(self) -> int:
        """Bytes that this rank has sent to others."""
        return sum(parcel.left for parcel in self.parcels)

    @property
    def arrived(self) -> int:
        """Bytes that this rank has got from others."""
        return sum(parcel.arrived for parcel in self.parcels)

    def left_among(self, ranks: Sequence[int]) -> int:
        """Return the bytes sent in collectives in which exactly these ranks took part."""
        return sum(parcel.left for parcel in self.parcels if parcel.ranks == tuple(ranks))


def _parcel(call: Collective, args: tuple[Any, ...], result: Any) -> Parcel:
    ranks = next(filter(None, map(_ranks, args)), (dist.get_rank(),))
    if call.name != "all_to_all":
        share = call.volume * (len(ranks) - 1) // len(ranks)
        return Parcel(call.name, share, share, ranks)
    mine = ranks.index(dist.get_rank())
    lists = [arg for arg in args if isinstance(arg, list | tuple)]
    if isinstance(args[0], list | tuple):  # lists of tensors, one for each rank
        arrived, left = (sum(t.nbytes for i, t in enumerate(part) if i != mine) for part in lists[:2])
    else:  # one tensor each, and how many rows go to and come from each rank
        tensors = [arg for arg in (*args, result) if isinstance(arg, Tensor)]
        output, taken = tensors[:2] if _writes_into(args) else (tensors[1], tensors[0])
        arrived, left = (_others(t, parts, mine, len(ranks)) for t, parts in zip((output, taken), lists, strict=False))
    return Parcel(call.name, left, arrived, ranks)


def _writes_into(args: tuple[Any, ...]) -> bool:
    """Say whether the call got a tensor to write into; functional collectives return theirs."""
    return sum(isinstance(arg, Tensor) for arg in args) == 2


def _others(tensor: Tensor, parts: Sequence[int], mine: int, ranks: int) -> int:
    """Return the bytes of all parts but this rank's; without `parts`, they are equal."""
    rows = sum(parts) - parts[mine] if parts else tensor.shape[0] * (ranks - 1) // ranks
    return rows * math.prod(tensor.shape[1:]) * tensor.element_size()


def _ranks(argument: Any) -> tuple[int, ...]:
    """Return the ranks of the process group that is an operation's argument; () for other arguments."""
    try:
        if isinstance(argument, str):  # functional collectives give the group's name
            argument = dist.distributed_c10d._resolve_process_group(argument)
        elif isinstance(argument, torch.ScriptObject):
            argument = dist.ProcessGroup.unbox(argument)
    except RuntimeError:  # it says how to reduce
        return ()
    return tuple(dist.get_process_group_ranks(argument)) if isinstance(argument, dist.ProcessGroup) else ()

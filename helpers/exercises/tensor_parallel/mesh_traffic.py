"""The bytes that a rank sends along each dimension of a mesh.

A collective names its process group, and each dimension of a mesh has its own group.
"""

from collections import Counter
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ...ranks.collectives import Collectives


class MeshTraffic(Collectives):
    """Records the collectives of the code in its `with` block, each with the dimension of `mesh` that it went along.

    >>> with MeshTraffic(mesh) as traffic:  # doctest: +SKIP
    ...     model(x).sum().backward()
    >>> traffic.by_dimension()["tensor"]  # doctest: +SKIP
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self._names = {mesh.get_group(name).group_name: name for name in mesh.mesh_dim_names or ()}
        self._sent: Counter[str] = Counter(dict.fromkeys(self._names.values(), 0))

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """If the operation is a collective, note its bytes under the dimension of its group."""
        before = len(self.calls)
        super().see(func, args, kwargs, result)
        if made := self.calls[before:]:
            names = (self._names.get(_group_name(argument)) for argument in args)
            self._sent[next(filter(None, names), "another group")] += sum(call.volume for call in made)

    def by_dimension(self) -> dict[str, int]:
        """Return the bytes that this rank sends in a ring of many ranks, by dimension."""
        return dict(self._sent)


def _group_name(argument: Any) -> str:
    """Return the name of the process group that is an operation's argument; "" for other arguments."""
    if isinstance(argument, str):  # functional collectives give the name
        return argument
    try:
        return dist.ProcessGroup.unbox(argument).group_name
    except (TypeError, RuntimeError):
        return ""

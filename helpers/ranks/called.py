"""Which collectives this rank has called, in order: PyTorch's flight recorder, in the names of `torch.distributed`.

The recorder writes down what the backend does. Gloo reduce-scatters by all-reduces, one for each rank, so the recorder
says all_reduce where the code says reduce_scatter; a learner would look for a call that is not there. So these calls
are noted as they go to the process group, under the numbers that the recorder gives their entries.
"""

import functools
import json
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ..core.device import rank_device

_REDUCE_SCATTERS = (  # methods of a process group; the newest PyTorch has all of them
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single_coalesced",
)
_noted: dict[tuple[str, int], str] = {}  # by group and number in the group; "" for a later entry of the same call


def note_reduce_scatters() -> None:
    """From now on, note each reduce-scatter of this process."""
    for name in _REDUCE_SCATTERS:
        method = getattr(dist.ProcessGroup, name, None)
        if method:
            setattr(dist.ProcessGroup, name, _noting(method))


def _noting(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def noted(group: dist.ProcessGroup, *args: Any, **options: Any) -> Any:
        before = _number_of(group)
        work = method(group, *args, **options)
        for number in range(before + 1, _number_of(group) + 1):
            _noted[group.group_name, number] = "" if number > before + 1 else "reduce_scatter"
        return work

    return noted


def _number_of(group: dist.ProcessGroup) -> int:
    """Return the number of the latest call; 0 for backends without numbers, such as that of a virtual GPU's ranks."""
    try:
        return group._get_sequence_number_for_group()
    except RuntimeError:
        return 0


def collectives_called() -> list[str]:
    """Return the collectives that this rank has called, in order; none where nothing was recorded."""
    name = "_dump_nccl_trace_json" if rank_device().type == "cuda" else "_dump_fr_trace_json"  # each has its recorder
    try:
        entries = json.loads(getattr(torch._C._distributed_c10d, name)())["entries"]
        return list(filter(None, map(_name, entries)))
    except (AttributeError, KeyError, ValueError, RuntimeError):  # not this version, or nothing recorded
        return []


def _name(entry: dict[str, Any]) -> str:
    at = entry["process_group"][0], entry["collective_seq_id"]
    return _noted.get(at, entry["profiling_name"].partition(":")[2])

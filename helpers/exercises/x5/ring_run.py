"""Run a ring attention on ranks: its output and its gradients, what it sends and multiplies, and its memory."""

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...meter.recorder import MemoryMeter
from ..base import Evidence
from ..probing.on_ranks import on_ranks
from ..probing.plain import plain
from .groups import LIMIT, open_groups
from .last_message import LastMessage, most_since
from .ring_spy import RingSpy
from .sequences import Case, Shard, shard_of
from .untouched import Untouched

Ring = Callable[..., Any]  # (q, k, v, group) -> output
Look = Callable[..., Evidence]  # (ring, seed, case, group) -> what one rank saw


def each_rank(look: Look, ring: Ring, seed: int, cases: list[Case]) -> dict[str, list[Evidence]]:
    """Return what `look` saw on each rank, by the name of the case; four ranks are started once for all cases."""
    ranks = on_ranks(_every_case, 4, look, ring, seed, cases, timeout=LIMIT)
    names = [str(case) for case in cases]
    return {name: [seen[name] for seen in ranks if name in seen] for name in names}


def _every_case(look: Look, ring: Ring, seed: int, cases: list[Case]) -> dict[str, Evidence]:
    """One rank: go through the cases; in some of them this rank has no part."""
    seen, untouched = {}, Untouched()
    changed = untouched.changed  # this very method, whatever becomes of the class
    for number, case in enumerate(cases):
        group = open_groups(case.ranks)
        if group is not None:
            first = dist.get_process_group_ranks(group)[0]  # each group has a sequence of its own
            who = {"rank": dist.get_rank(group), "group": first}
            seen[str(case)] = who | look(ring, seed + 100 * number + 10 * first, case, group)
            seen[str(case)] |= {"changed": changed()[:3]}
    return seen


def _in_chunks(tensor: Any) -> Evidence:
    """Return a tensor (B, H, t, D) as the numbers of its earlier and of its later chunk."""
    if not isinstance(tensor, Tensor):
        return {"kind": type(tensor).__name__}
    tensor = plain(tensor).detach()
    seen: Evidence = {"kind": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
    if tensor.dim() == 4:
        seen["chunks"] = [chunk.flatten().tolist() for chunk in tensor.chunk(2, 2)]
    return seen


def output(ring: Ring, seed: int, case: Case, group: dist.ProcessGroup) -> Evidence:
    """One rank: the output."""
    q, k, v, _ = shard_of(seed, case, dist.get_rank(group))
    return {"output": _in_chunks(ring(q, k, v, group))}


def gradients(ring: Ring, seed: int, case: Case, group: dist.ProcessGroup) -> Evidence:
    """One rank: the gradients of two calls of which the second comes before the first one's backward pass."""
    first, second = (shard_of(seed + i, case, dist.get_rank(group)) for i in range(2))
    outputs = [ring(*shard[:3], group) for shard in (first, second)]
    for shard, out in zip((first, second), outputs, strict=True):
        out.backward(shard.grad)
    return {name: _in_chunks(getattr(first, name).grad) for name in "qkv"}


def traffic(ring: Ring, seed: int, case: Case, group: dist.ProcessGroup) -> Evidence:
    """One rank: what it sends and multiplies, forward and backward."""
    q, k, v, grad = shard_of(seed, case, dist.get_rank(group))
    with RingSpy(group) as forward:
        out = ring(q, k, v, group)
    with RingSpy(group) as backward:
        out.backward(grad)
    return {"forward": forward.evidence, "backward": backward.evidence}


def memory(ring: Ring, seed: int, case: Case, group: dist.ProcessGroup) -> Evidence:
    """One rank: bytes beyond the inputs, at the peak of each pass and after the forward pass; Python's own as well."""
    rank = dist.get_rank(group)
    gc.freeze()  # what this process was born with need not be looked through again
    _both(ring, shard_of(seed, case, rank), group)  # the first call imports what it needs
    meter = MemoryMeter(device=torch.device("cpu"), by_tenant=False)
    seen = {}
    q, k, v, grad = _fresh(seed, case, rank)
    with LastMessage() as last, meter as profile:
        out = ring(q, k, v, group)
    seen |= {"forward": profile.peak_bytes, "forward, late": most_since(last.when, profile)}
    seen["between"] = most_since(profile.ended, profile)
    out.backward(grad)
    del out
    shard = _fresh(seed, case, rank)
    with LastMessage() as last, meter as profile:
        _both(ring, shard, group)
    seen |= {"both": profile.peak_bytes, "both, late": most_since(last.when, profile)}
    shard = _fresh(seed, case, rank)
    tracemalloc.start()
    _both(ring, shard, group)
    seen["python"] = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return seen


def _fresh(seed: int, case: Case, rank: int) -> Shard:
    gc.collect()
    return shard_of(seed, case, rank, contiguous=True)


def _both(ring: Ring, shard: Shard, group: dist.ProcessGroup) -> None:
    ring(*shard[:3], group).backward(shard.grad)

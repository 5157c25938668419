"""Run a ring attention on ranks: its output and its gradients, what it sends and multiplies, and its memory."""

import gc
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ...meter.profile import MemoryProfile
from ...meter.recorder import MemoryMeter
from ...meter.session import clock
from ..base import Evidence
from ..probing.plain import plain
from .groups import open_groups
from .last_message import LastMessage, most_between
from .ring_spy import RingSpy
from .sequences import Case, Shard, shard_of
from .untouched import Untouched

WIDE_ITEM = 4  # bytes of a number in FP32
FEW = 8192  # bytes of what may grow with the sequence: positions, a log-sum-exp of each block

Ring = Callable[..., Any]  # (q, k, v, order, lengths, group) -> output
Look = Callable[..., Evidence]  # (ring, seed, case, group) -> what one rank saw
Changed = Callable[[], list[str]]  # names that stand for something else than when the rank began


def watched(_: Path) -> Changed:
    """Return the very method that says what an answer has replaced, whatever becomes of the class."""
    return Untouched().changed


def each_case(look: Look, cases: list[Case], changed: Changed, ring: Ring, seed: int) -> dict[str, Evidence]:
    """One rank: go through the cases; in some of them this rank has no part."""
    seen = {}
    for number, case in enumerate(cases):
        group = open_groups(case.ranks)
        if group is not None:
            first = dist.get_process_group_ranks(group)[0]  # each group has a sequence of its own
            who = {"rank": dist.get_rank(group), "group": first}
            seen[str(case)] = who | look(ring, seed + 100 * number + 10 * first, case, group)
            seen[str(case)] |= {"changed": changed()[:3]}
    return seen


def by_case(entry: Evidence, cases: list[Case]) -> Evidence:
    """Return the entry of a stage with what was seen by the name of the case, on the ranks that had part in it."""
    if "seen" not in entry:
        return entry
    names = [str(case) for case in cases]
    return {"seen": {name: [seen[name] for seen in entry["seen"] if name in seen] for name in names}}


def _in_chunks(tensor: Any, per: int) -> Evidence:
    """Return a tensor (B, H, t, D) as the numbers of each of its `per` chunks."""
    if not isinstance(tensor, Tensor):
        return {"kind": type(tensor).__name__}
    tensor = plain(tensor).detach()
    seen: Evidence = {"kind": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
    if tensor.dim() == 4:
        seen["chunks"] = [chunk.flatten().tolist() for chunk in tensor.chunk(per, 2)]
    return seen


def _kept(given: tuple[Tensor, ...], before: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(given, before, strict=True))


def _lists(case: Case) -> tuple[list[list[int]], list[int]]:
    """Return the order and the lengths, in lists of their own for each call."""
    return [list(chunks) for chunks in case.order], list(case.lengths)


def _call(ring: Ring, shard: tuple[Tensor, ...], case: Case, group: dist.ProcessGroup) -> Any:
    return ring(*shard[:3], *_lists(case), group)


def output(ring: Ring, seed: int, case: Case, group: dist.ProcessGroup) -> Evidence:
    """One rank: the output, in every other case without a graph."""
    given, lists = shard_of(seed, case, dist.get_rank(group))[:3], _lists(case)
    before = [x.detach().clone() for x in given]
    recorded = seed // 100 % 2 == 0  # in some cases so, in some as where a model is measured
    with torch.set_grad_enabled(recorded):
        out = ring(*given, *lists, group)
    kept = _kept(given, before) and lists == _lists(case)
    return {"output": _in_chunks(out, case.per), "kept": kept, "recorded": recorded}


def gradients(ring: Ring, seed: int, case: Case, group: dist.ProcessGroup) -> Evidence:
    """One rank: the gradients of a call; there is another one before the first backward pass, of other documents."""
    calls = [case, replace(case, lengths=case.lengths[::-1], order=case.order[::-1])]
    shards = [shard_of(seed + i, call, dist.get_rank(group)) for i, call in enumerate(calls)]
    before = [[x.detach().clone() for x in shard] for shard in shards]
    lists = list(map(_lists, calls))
    outputs = [ring(*shard[:3], *own, group) for shard, own in zip(shards, lists, strict=True)]
    pairs = list(zip(shards, outputs, strict=True))
    for shard, out in pairs if seed // 100 % 2 else pairs[::-1]:  # in either order: some cases so, some so
        out.backward(shard.grad)
    kept = all(map(_kept, shards, before)) and lists == list(map(_lists, calls))
    return {name: _in_chunks(getattr(shards[0], name).grad, case.per) for name in "qkv"} | {"kept": kept}


def traffic(ring: Ring, seed: int, case: Case, group: dist.ProcessGroup) -> Evidence:
    """One rank: what it sends and multiplies, forward and backward."""
    rank = dist.get_rank(group)
    shard = shard_of(seed, case, rank)
    with RingSpy(group) as forward:
        out = _call(ring, shard, case, group)
    with RingSpy(group) as backward:
        out.backward(shard.grad)
    flops = {"pair": case.chunk**2 * case.pair_flops, "least": case.seen(rank) * case.pair_flops}
    block = {"bytes": case.block_bytes, "flops": flops, "pairs": case.needed(rank)}
    return {"block": block, "forward": forward.evidence, "backward": backward.evidence}


def _sizes(profile: MemoryProfile) -> list[int]:
    """Return the sizes of all that was allocated, if only for a moment, but for a few numbers for each token."""
    return sorted({life.nbytes for life in profile.lifetimes if life.nbytes > FEW})


def _held(profile: MemoryProfile, when: int, nbytes: int) -> int:
    """Return how many pieces of memory of this size were held at this moment."""
    alive = [life for life in profile.lifetimes if life.start <= when and (life.end is None or life.end > when)]
    return sum(life.nbytes == nbytes for life in alive)


def _saved_in_fp32(out: Any) -> list[Tensor]:
    """Return the tensors in FP32 that the graph of `out` holds, but for a few numbers for each token."""
    nodes, held = [getattr(out, "grad_fn", None)], []
    for node in nodes:  # it grows
        if node is None:
            continue
        nodes += [before for before, _ in node.next_functions if before not in nodes]
        saved = [getattr(node, name) for name in dir(node) if name.startswith("_saved_") or name == "saved_tensors"]
        held += tree_leaves((saved, list(getattr(node, "__dict__", {}).values())))
    return [x.detach() for x in held if isinstance(x, Tensor) and x.dtype == torch.float32 and x.nbytes > FEW]


def _upcast(saved: list[Tensor], shard: Shard) -> int:
    """Return how many of these tensors have only numbers of q, k or v."""
    numbers = torch.cat([x.detach().float().flatten() for x in shard[:3]])
    return sum(bool(torch.isin(x, numbers).all()) for x in saved)


def _bytes_of(tensors: list[Tensor]) -> int:
    """Return the bytes of the memory behind these tensors; what several of them share counts once."""
    return sum({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}.values())


def memory(ring: Ring, seed: int, case: Case, group: dist.ProcessGroup) -> Evidence:
    """One rank: bytes beyond the inputs, at the peak of each pass and after the forward pass; Python's own as well."""
    rank = dist.get_rank(group)
    gc.freeze()  # what this process was born with need not be looked through again
    # The first call imports what it needs. Its documents are others, so that masks that it keeps help no later call.
    shard = shard_of(seed, case, rank)
    out = _call(ring, shard, replace(case, lengths=(1, sum(case.lengths) - 1)), group)
    saved = _saved_in_fp32(out)
    upcast, in_fp32 = _upcast(saved, shard), _bytes_of(saved)
    del saved
    out.backward(shard.grad)
    del out
    shard = _fresh(seed, case, rank)
    with LastMessage() as last, MemoryMeter(device=torch.device("cpu"), by_category=False) as profile:
        out = _call(ring, shard, case, group)
        sent, middle = last.when, clock()
        out.backward(shard.grad)
        del out
    seen = {
        "forward": most_between(0, middle, profile),
        "forward, late": most_between(sent, middle, profile),
        "between": most_between(middle, middle, profile),
        "both": profile.peak_bytes,
        "both, late": most_between(last.when, profile.ended, profile),
        "sizes": _sizes(profile),
        "wide": _held(profile, middle, WIDE_ITEM * shard.q.numel()),
        "upcast": upcast,
        "in fp32": in_fp32,
    }
    # Of two runs the smaller one: a table that happens to grow in one of them belongs to Python, not to the answer.
    seen["python"] = min(_python_peak(ring, seed, case, group) for _ in range(2))
    return seen


def _python_peak(ring: Ring, seed: int, case: Case, group: dist.ProcessGroup) -> int:
    """Return the most bytes of Python's own memory in both passes."""
    shard = _fresh(seed, case, dist.get_rank(group))
    tracemalloc.start()
    _both(ring, shard, case, group)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def _fresh(seed: int, case: Case, rank: int) -> Shard:
    gc.collect()
    return shard_of(seed, case, rank, contiguous=True)


def _both(ring: Ring, shard: Shard, case: Case, group: dist.ProcessGroup) -> None:
    _call(ring, shard, case, group).backward(shard.grad)

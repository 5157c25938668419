"""One run of the learner's ring on a rank, and what is measured: results, work, messages, memory, inputs.

All checks of a direction use the same runs: one start each of 2, 4 and 5 ranks.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...meter.flops import flops_of
from ...meter.operations_seen import OperationWatch
from ...meter.recorder import MemoryMeter
from ...ranks.collectives import Collectives
from ..base import Evidence
from ..probing.on_ranks import on_ranks
from ..tensor_parallel.inputs import drawn
from ..tensor_parallel.said import by_rank, in_words, noted, wrong_tensor
from .block_log import PRODUCTS, BlockLog, attending

Order = list[list[int]]
FAR = 100.0, 20.0  # an entry of each q, its sign changing from row to row, and of each k: scores of 1,000 and -1,000
CALLS = {"forward": "attend", "backward": "attend_backward"}  # by the kind of a block
AHEAD = {"1": "next", "-1": "previous"}  # how many ranks ahead on the ring, in words
HEAD = 4  # channels of a head
LONG = 64  # rows of a chunk where memory is measured, and what is multiplied outside of `attend`
AGAIN = 0.4  # products outside, in those of a rank's queries and its own keys; merging by products takes a thirtieth


@dataclass(frozen=True)
class Setting:
    """What the ranks share: the chunks of each, heads of q and of k, rows of a chunk, sequences, and far-off scores."""

    order: Order
    heads: tuple[int, int]
    chunk: int = 6
    batch: int = 2
    far: bool = False


SETTINGS: dict[int, dict[str, Setting]] = {  # by number of ranks
    2: {
        "2 ranks, a chunk each": Setting([[0], [1]], (4, 4)),
        "2 ranks, three chunks each": Setting([[4, 0, 5], [2, 3, 1]], (6, 3)),
        "2 ranks, two chunks of one row each, one head": Setting([[0, 3], [1, 2]], (1, 1), chunk=1, batch=1),
        "2 ranks, scores of 1,000 and of -1,000": Setting([[0, 3], [1, 2]], (2, 2), far=True),
    },
    5: {
        "5 ranks, a chunk each, grouped queries": Setting([[0], [1], [2], [3], [4]], (4, 2)),
        "5 ranks, two chunks each, first and last": Setting([[0, 9], [1, 8], [2, 7], [3, 6], [4, 5]], (2, 1)),
        "5 ranks, two chunks each, dealt out in any order": Setting([[5, 2], [9, 4], [7, 1], [3, 6], [0, 8]], (2, 2)),
    },
    4: {},  # for the peak only
}
FEWER, MORE = 4, 5  # ranks whose peaks are compared: with fewer than 4, an answer may not yet hold all of its buffers
GROWTH = 1.0  # blocks that the peak may grow from 4 to 5 ranks; keeping all keys and values takes 2 more
LARGE = {n: Setting([[rank] for rank in range(n)], (1, 1), LONG) for n in SETTINGS}


class RingCase:
    """Whole tensors that all ranks draw alike, this rank's chunks of them, and the results of one process."""

    def __init__(self, seed: int, setting: Setting) -> None:
        self.setting, self.order, self.rank = setting, [list(held) for held in setting.order], dist.get_rank()
        self.chunks = sum(map(len, self.order))
        heads, kv_heads = setting.heads
        rows = self.chunks * setting.chunk
        draw = lambda i, h: drawn(seed + i, setting.batch, h, rows, HEAD)[0]  # noqa: E731
        self.whole = [
            draw(i, h) for i, h in enumerate((heads, kv_heads, kv_heads, heads))
        ]  # q, k, v, output's gradient
        if setting.far:
            q, k = self.whole[:2]
            q[..., ::2, -1], k[..., -1] = FAR
            q[..., 1::2, -1] = -FAR[0]
        self.mine = [self.cut(t) for t in self.whole]

    def cut(self, tensor: Tensor, ahead: int = 0) -> Tensor:
        """Return this rank's chunks of dimension 2, or those of the rank `ahead` of it on the ring."""
        parts, order = tensor.chunk(self.chunks, dim=2), self.setting.order
        return torch.cat([parts[number] for number in order[(self.rank + ahead) % len(order)]], dim=2)

    def right(self, ahead: int = 0) -> dict[str, Tensor]:
        """Return what one process computes, this rank's part (or that of the rank `ahead`): out, lse, gradients."""
        q, k, v, gradient = (t.clone().requires_grad_() for t in self.whole)
        k_all, v_all = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        scores = q @ k_all.mT / math.sqrt(HEAD)
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
        out = scores.softmax(-1) @ v_all
        (out * gradient.detach()).sum().backward()
        found = {"out": out, "lse": scores.logsumexp(-1), "dq": q.grad, "dk": k.grad, "dv": v.grad}
        return {name: self.cut(t.detach(), ahead) for name, t in found.items()}

    def work(self) -> int:
        """Return the pairs of a row and a column that this rank's rows see."""
        chunk = self.setting.chunk
        return sum(number * chunk * chunk + chunk * (chunk + 1) // 2 for number in self.setting.order[self.rank])


Look = tuple[Sequence[str], Sequence[Tensor], Callable[[], Sequence[Tensor]]]
Looks = Callable[[RingCase, Any], Look]  # (case, answer) -> names of results, everything that is given, and the call


def observe(seed: int, look: Looks, answer: Any) -> Evidence:
    """Return what each rank saw, by the number of ranks: in each setting, and at its peak in a long one."""
    return {str(n): on_ranks(_all_settings, n, seed, look, answer) for n in SETTINGS}


def _all_settings(seed: int, look: Looks, answer: Any) -> Evidence:
    """One rank: all settings of its number of ranks."""
    n = dist.get_world_size()
    seen = []
    for number, setting in enumerate(SETTINGS[n].values()):
        case = RingCase(seed + 10 * number, setting)
        seen.append(_run(case, look(case, answer)))
    case = RingCase(seed, LARGE[n])
    _, inputs, call = look(case, answer)
    call()  # the first call imports what it needs, and keeps what it likes
    return {"settings": seen, "peak": _peak_in_blocks(case, call), "again": _products_outside(call, inputs)}


def _named(seen: Evidence) -> Iterator[tuple[str, list[Evidence]]]:
    """Yield the name of each setting, and what the ranks have reported of it."""
    for n, ranks in seen.items():
        for i, name in enumerate(SETTINGS[int(n)]):
            yield name, [rank["settings"][i] for rank in ranks]


class _SentOn(Collectives):
    """Records the messages, and counts the numbers sent that are keys or values."""

    def __init__(self, case: RingCase) -> None:
        super().__init__()
        self.numbers, self._given = 0, torch.cat([t.flatten() for t in case.whole[1:3]])

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Record the operation if it is a message."""
        super().see(func, args, kwargs, result)
        if func.namespace == "c10d" and func._schema.name.endswith("::send"):
            self.numbers += sum(int(torch.isin(t, self._given).sum()) for t in args[0])


class _EarlyMessages(BlockLog):
    """A log of what this rank had started to send when each block was done."""

    def __init__(self, case: RingCase, calls: _SentOn) -> None:
        super().__init__()
        self.messages, self.late = 0, []  # messages before the first block; steps whose keys and values were late
        self._case, self._calls, self._scores = case, calls, 0.0

    def note(self, kind: str, work: float, start: float) -> None:
        """Write down a block that is done."""
        if not self.entries:
            self.messages = sum(call.name == "send" for call in self._calls.calls)
        n, chunk = dist.get_world_size(), self._case.setting.chunk
        diagonal = chunk * (chunk + 1) / 2  # the scores of step 0 where each rank has one chunk
        step = 0 if self._scores < diagonal else 1 + int((self._scores - diagonal) // chunk**2)
        if self._calls.numbers < 2 * min(step + 1, n - 1) * self._case.mine[1].numel():
            self.late.append(step)
        self._scores += work / PRODUCTS[kind]
        super().note(kind, work, start)


def _run(case: RingCase, look: Look) -> Evidence:
    """Call the learner's function on one rank and note everything that is asked of it."""
    names, inputs, call = look
    kept = [t.clone() for t in inputs]
    with _SentOn(case) as calls, _EarlyMessages(case, calls) as log:
        got = call()
    right, block = case.right(), case.mine[1].nbytes
    ahead = {way: case.right(int(way)) for way in AHEAD}
    work: dict[str, float] = {"forward": 0.0, "backward": 0.0}
    for entry in log.entries:
        work[entry.kind] += entry.work
    return {
        "got": {name: noted(t) for name, t in zip(names, got, strict=True)},
        "right": {name: noted(right[name]) for name in names},
        "ahead": {way: {name: noted(t[name]) for name in names} for way, t in ahead.items()},
        "work": work,
        "scores": case.work(),
        "early": log.messages,
        "late": log.late if case.rank == case.chunks - 1 else [],  # of one chunk each, the last rank has a block a step
        "blocks": sum(call.nbytes for call in calls.calls if call.name == "send") / block,
        "others": [list(call) for call in calls.calls if call.name not in ("send", "recv")],
        "changed": [not torch.equal(t, before) for t, before in zip(inputs, kept, strict=True)],
        "dealt": case.order == case.setting.order,
    }


def _peak_in_blocks(case: RingCase, call: Callable[[], Any]) -> float:
    """Return the peak of a call, in blocks of this rank's keys."""
    with MemoryMeter(device=case.mine[0].device, by_category=False) as profile:
        kept = call()
    del kept
    return profile.peak_bytes / case.mine[1].nbytes


class _Outside(OperationWatch):
    """Counts the FLOPs of products that are not made within `attend` and `attend_backward`."""

    flops = 0

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Count the operation."""
        if not attending():
            self.flops += flops_of(func, args, kwargs, result)


def _products_outside(call: Callable[[], Any], inputs: Sequence[Tensor]) -> float:
    """Return the FLOPs of products outside of `attend`, by those of this rank's queries and its own keys."""
    rows = next(t for t in inputs if t.dim() == 4)
    with _Outside() as outside:
        call()
    return outside.flops / (2 * rows.shape[0] * rows.shape[1] * rows.shape[2] ** 2 * rows.shape[3])


def wrong_values(seen: Evidence) -> str | None:
    """Say which result of which rank is not that of one process."""
    for case, ranks in _named(seen):
        for name in ranks[0]["right"]:
            texts = []
            for got in ranks:
                others = {
                    f"is that of the {which} rank's chunks": got["ahead"][way][name] for way, which in AHEAD.items()
                }
                texts.append(wrong_tensor(got["got"][name], got["right"][name], others))
            if said := by_rank(f"{case}: {name}", texts):
                return said
    return None


def wrong_work(seen: Evidence, products: dict[str, int]) -> str | None:
    """Say which rank computes more scores than its rows see, or fewer."""
    for case, ranks in _named(seen):
        for kind, times in products.items():
            texts = []
            for got in ranks:
                scores, right = got["work"][kind] / max(1, times), got["scores"] * bool(times)
                needed = f"its rows attend to {right:,}" if times else "this pass needs none of these calls"
                texts.append(None if scores == right else f"computes {scores:,.0f} scores per head; {needed}")
            if said := by_rank(f"{case}, in `{CALLS[kind]}`", texts):
                return said
    for n, ranks in seen.items():
        texts = [
            f"does matmuls with {rank['again']:.1f} times the FLOPs of a block's scores; use the results of these calls"
            if rank["again"] > AGAIN
            else None
            for rank in ranks
        ]
        if said := by_rank(f"{n} ranks, outside `attend` and `attend_backward`", texts):
            return said
    return None


def wrong_messages(seen: Evidence, most: Callable[[int], float]) -> str | None:
    """Say which rank sends more blocks than `most(ranks)`, or calls a collective."""
    for case, ranks in _named(seen):
        texts = []
        for got in ranks:
            said = f"calls {in_words(got['others'])}" if got["others"] else None
            if not said and not got["blocks"] <= most(len(ranks)) + 1e-9:
                said = f"sends {got['blocks']:g} blocks of the size of its keys; it needs {most(len(ranks)):g} at most"
            texts.append(said)
        if said := by_rank(case, texts):
            return said
    return None


def late_messages(seen: Evidence) -> str | None:
    """Say which rank computes a block before the keys and values for the next step are on their way."""
    for case, ranks in _named(seen):
        texts = []
        for got in ranks:
            late = got["late"][:1] if got["early"] else [0]
            texts += [
                f"computes the block of step {step} before it sends the keys and values for step {step + 1}"
                for step in late
            ] or [None]
        if said := by_rank(case, texts):
            return said
    return None


def wrong_growth(seen: Evidence) -> str | None:
    """Say that the peak of a rank grows with the ranks."""
    few, many = (max(rank["peak"] for rank in seen[str(n)]) for n in (FEWER, MORE))
    if many <= few + GROWTH:
        return None
    return (
        f"The peak of a rank is {few:.1f} blocks of its keys with {FEWER} ranks, and {many:.1f} with {MORE}: it grows "
        "with the number of ranks. Which blocks does your function still hold when it no longer needs them?"
    )


def changed_inputs(seen: Evidence, names: Sequence[str]) -> str | None:
    """Say which input was changed in place, on which rank."""
    for case, ranks in _named(seen):
        for i, name in enumerate(names):
            if said := by_rank(
                f"{case}: {name}", ["was changed in place" if got["changed"][i] else None for got in ranks]
            ):
                return said
        if said := by_rank(f"{case}: order", [None if got["dealt"] else "was changed in place" for got in ranks]):
            return said
    return None

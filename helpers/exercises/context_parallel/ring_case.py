"""One run of the learner's ring on a rank, and what can be said of it: results, work, messages, memory, inputs."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...meter.recorder import MemoryMeter
from ...ranks.collectives import Collectives
from ..base import Evidence
from ..probing.on_ranks import on_ranks
from ..tensor_parallel.inputs import drawn
from ..tensor_parallel.said import by_rank, in_words, noted, wrong_tensor
from .diary import Diary

Order = list[list[int]]
ORDERS: dict[int, dict[str, tuple[Order, tuple[int, int]]]] = {  # by ranks: pieces of each, heads of q and of k
    2: {"2 ranks, a piece each": ([[0], [1]], (4, 4))},
    4: {
        "4 ranks, a piece each, grouped queries": ([[0], [1], [2], [3]], (4, 2)),
        "4 ranks, two pieces each, first and last": ([[0, 7], [1, 6], [2, 5], [3, 4]], (2, 1)),
        "4 ranks, two pieces each, dealt out at will": ([[5, 2], [0, 4], [7, 1], [3, 6]], (2, 2)),
    },
}
PIECE, HEAD = 6, 4  # rows of a piece, channels of a head


class RingCase:
    """Whole tensors that all ranks draw alike, this rank's pieces of them, and what one process makes of them."""

    def __init__(self, seed: int, order: Order, heads: tuple[int, int], piece: int = PIECE) -> None:
        self.order, self.rank = order, dist.get_rank()
        pieces = sum(map(len, order))
        sizes = (heads[0], heads[1], heads[1], heads[0])
        draw = lambda i, h: drawn(seed + i, 2, h, pieces * piece, HEAD)[0]  # noqa: E731
        self.whole = [draw(i, h) for i, h in enumerate(sizes)]  # q, k, v and the gradient of the output
        self.mine = [self.cut(t) for t in self.whole]

    def cut(self, tensor: Tensor) -> Tensor:
        """Return this rank's pieces of dimension 2."""
        parts = tensor.chunk(sum(map(len, self.order)), dim=2)
        return torch.cat([parts[number] for number in self.order[self.rank]], dim=2)

    def right(self) -> dict[str, Tensor]:
        """Return what one process computes, this rank's part of it: out, lse and three gradients."""
        q, k, v, gradient = (t.clone().requires_grad_() for t in self.whole)
        k_all, v_all = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        scores = q @ k_all.mT / math.sqrt(HEAD)
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
        out = scores.softmax(-1) @ v_all
        (out * gradient.detach()).sum().backward()
        found = {"out": out, "lse": scores.logsumexp(-1), "dq": q.grad, "dk": k.grad, "dv": v.grad}
        return {name: self.cut(t.detach()) for name, t in found.items()}

    def work(self) -> int:
        """Return the pairs of a row and a column that this rank's rows see."""
        piece = self.whole[0].shape[2] // sum(map(len, self.order))
        return sum(number * piece * piece + piece * (piece + 1) // 2 for number in self.order[self.rank])


def on_orders(run: Callable[..., Evidence], seed: int, answer: Any, worlds: Sequence[int] = (2, 4)) -> Evidence:
    """Return what `run(seed, answer, order, heads)` returns: by number of ranks, a list for each order, by rank."""
    return {
        str(n): [list(case) for case in zip(*on_ranks(_orders, n, run, seed, answer, n), strict=True)] for n in worlds
    }


def _orders(run: Callable[..., Evidence], seed: int, answer: Any, n: int) -> list[Evidence]:
    return [run(seed, answer, *settings) for settings in ORDERS[n].values()]


def _named(seen: Evidence) -> Iterator[tuple[str, list[Evidence]]]:
    """Yield the name of each case, and what the ranks have reported of it."""
    for n, cases in seen.items():
        yield from zip(ORDERS[int(n)], cases, strict=True)


def run_case(
    case: RingCase, names: Sequence[str], inputs: Sequence[Tensor], call: Callable[[], Sequence[Tensor]]
) -> Evidence:
    """Call the learner's function on one rank and note everything that is asked of it.

    Args:
        names: of the tensors that it returns, as in `RingCase.right`.
        inputs: everything that it is given.
    """
    kept = [t.clone() for t in inputs]
    with Collectives() as calls, Diary() as diary:
        got = call()
    right, block = case.right(), case.mine[1].nbytes
    work: dict[str, float] = {"forward": 0.0, "backward": 0.0}
    for entry in diary.entries:
        work[entry.kind] += entry.work
    return {
        "got": {name: noted(t) for name, t in zip(names, got, strict=True)},
        "right": {name: noted(right[name]) for name in names},
        "work": work,
        "scores": case.work(),
        "blocks": sum(call.nbytes for call in calls.calls if call.name == "send") / block,
        "others": [list(call) for call in calls.calls if call.name not in ("send", "recv")],
        "changed": [not torch.equal(t, before) for t, before in zip(inputs, kept, strict=True)],
    }


def peak_in_blocks(case: RingCase, call: Callable[[], Any]) -> float:
    """Return the peak of a call, in blocks of this rank's keys."""
    with MemoryMeter(device=case.mine[0].device, by_tenant=False) as profile:
        kept = call()
    del kept
    return profile.peak_bytes / case.mine[1].nbytes


def wrong_values(seen: Evidence) -> str | None:
    """Say which result of which rank is not that of one process."""
    for case, ranks in _named(seen):
        for name in ranks[0]["right"]:
            texts = [wrong_tensor(got["got"][name], got["right"][name], {}) for got in ranks]
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
                fine = scores == right
                texts.append(None if fine else f"computes {scores:,.0f} scores a head; its rows see {right:,}")
            if said := by_rank(f"{case}, blocks computed {kind}", texts):
                return said
    return None


def wrong_messages(seen: Evidence, most: Callable[[int], float]) -> str | None:
    """Say which rank sends more blocks than `most(ranks)`, or calls a collective."""
    for case, ranks in _named(seen):
        texts = []
        for got in ranks:
            said = f"calls {in_words(got['others'])}" if got["others"] else None
            if not said and not got["blocks"] <= most(len(ranks)) + 1e-9:
                said = f"sends {got['blocks']:g} blocks of keys' size; {most(len(ranks)):g} will do"
            texts.append(said)
        if said := by_rank(case, texts):
            return said
    return None


def wrong_growth(seen: Evidence, most: float) -> str | None:
    """Say that the peak of a rank grows with the ranks by more than `most` blocks."""
    few, many = seen["2"], seen["6"]
    if many <= few + most:
        return None
    return (
        f"The peak of a rank is {few:.1f} blocks of its keys with 2 ranks, and {many:.1f} with 6: it grows with the "
        "sequence."
    )


def changed_inputs(seen: Evidence, names: Sequence[str]) -> str | None:
    """Say which input was changed in place, on which rank."""
    for case, ranks in _named(seen):
        for i, name in enumerate(names):
            if said := by_rank(
                f"{case}: {name}", ["was changed in place" if got["changed"][i] else None for got in ranks]
            ):
                return said
    return None

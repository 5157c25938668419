"""Check of the exchange of rows between ranks, forward and back."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..base import Check, Evidence
from ..mixture_of_experts.inputs import WIDTH, leaf
from ..probing.on_ranks import on_ranks
from ..tensor_parallel.said import by_rank, noted, wrong_tensor

TABLES = {  # row i, column j: how many rows rank i has for rank j
    "uneven": [[1, 2, 0], [3, 0, 1], [2, 4, 2]],
    "rank 1 gets nothing": [[2, 0, 1], [1, 0, 3], [0, 0, 2]],
    "rank 0 sends nothing": [[0, 0, 0], [1, 2, 1], [2, 1, 0]],
}

SPLIT = "Split sizes"  # how PyTorch's error begins when they do not fit the tensors
SWAP = "the split sizes do not fit the gradient. Which ranks send in the backward pass, and how many rows?"


def _pieces(seed: int, table: list[list[int]]) -> list[list[Tensor]]:
    """Return for each pair of ranks the rows that go from i to j, the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(n, WIDTH, generator=generator, dtype=torch.float64) for n in row] for row in table]


def _strided(tensor: Tensor) -> Tensor:
    """Return the same numbers in another order in memory."""
    return tensor.T.contiguous().T


def _in_a_group(seed: int, Exchange: Any) -> Evidence | None:
    """One rank of four, of which the last three are a group; the first takes no part."""
    group = dist.new_group([1, 2, 3])
    found = None if dist.get_rank() == 0 else _exchanged(seed, Exchange, False, group)
    dist.barrier()
    return found


def _exchanged(seed: int, Exchange: Any, strided: bool, group: Any = None) -> Evidence:
    """One rank: result and gradient, and whether what came in is as it was."""
    group = group or dist.group.WORLD
    me, seen = dist.get_rank(group), {}
    for case, table in TABLES.items():
        there, back = _pieces(seed, table), _pieces(seed + 1, list(zip(*table, strict=True)))
        rows, gradient = torch.cat(there[me]), torch.cat(back[me])
        given = [_strided(rows), _strided(gradient)] if strided else [rows.clone(), gradient.clone()]
        send, receive = table[me], [row[me] for row in table]
        before = leaf(rows)
        mine = before * 1
        mine = mine.T.contiguous().T if strided else mine
        y = Exchange.apply(mine, list(send), list(receive), group)
        result = noted(y)
        error = False
        if y.shape == gradient.shape:
            try:
                y.backward(given[1])
            except RuntimeError as raised:
                if not str(raised).startswith(SPLIT):
                    raise
                error = True
        seen[case] = {
            "error": error,
            "got": [result, noted(before.grad)],
            "right": [
                noted(torch.cat([row[me] for row in there])),
                noted(torch.cat([row[me] for row in back])),
            ],
            "changed": [not torch.equal(mine, rows), not torch.equal(given[1], gradient)],
        }
        if error:  # in the first case, if at all, it stops all ranks; in others some would wait for the rest
            break
    return seen


def _wrong(seen: Evidence, expected: Evidence) -> str | None:
    for case in TABLES:
        texts = [SWAP if got[case]["error"] else None for got in seen["ranks"]]
        if said := by_rank(f"{case}, the backward pass", texts):
            return said
        for i, what in enumerate(("the rows that arrive", "the gradient of the rows")):
            pairs = zip(seen["ranks"], expected["ranks"], strict=True)
            texts = [wrong_tensor(got[case]["got"][i], want[case]["right"][i], {}) for got, want in pairs]
            if said := by_rank(f"{case}, {what}", texts):
                return said
            texts = ["was changed in place" if got[case]["changed"][i] else None for got in seen["ranks"]]
            if said := by_rank(f"{case}, the input of {what}", texts):
                return said
    return None


class ExchangesRows(Check):
    """Rank j receives, in rank order, the rows that each rank has for it; gradients take the reverse route."""

    hint = (
        "`dist.all_to_all_single(output, input, receive, send, group=group)`: the output's split sizes come first.\n"
        "The output has sum(receive) rows; `rows.new_empty(...)` allocates it.\n"
        "In the backward pass the sender receives: swap the two lists. `ctx` can keep them."
    )

    @staticmethod
    def probe(seed: int, Exchange: Any) -> Evidence:
        ranks = on_ranks(_in_a_group, 4, seed, Exchange)
        return {"ranks": [seen for seen in ranks if seen is not None]}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen, expected)


class TakesAnyLayout(Check):
    """Incoming rows and gradients need not be contiguous, and are not changed."""

    hint = "A collective needs contiguous memory: call `.contiguous()` first, forward and backward."

    after = ("exchanges_rows",)

    @staticmethod
    def probe(seed: int, Exchange: Any) -> Evidence:
        return {"ranks": on_ranks(_exchanged, 3, seed + 3, Exchange, True)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen, expected)


def _twice(seed: int, Exchange: Any) -> Evidence:
    """One rank: the gradient of a first and of a second backward pass through the same graph."""
    me, table = dist.get_rank(), TABLES["uneven"]
    there, back = _pieces(seed, table), _pieces(seed + 1, list(zip(*table, strict=True)))
    rows = leaf(torch.cat(there[me]))
    y = Exchange.apply(rows * 1, list(table[me]), [row[me] for row in table], dist.group.WORLD)
    found = [torch.autograd.grad(y, rows, torch.cat(back[me]), retain_graph=True)[0] for _ in range(2)]
    return {"passes": [noted(gradient) for gradient in found], "right": noted(torch.cat([row[me] for row in back]))}


class GoesBackTwice(Check):
    """A second backward pass through the same graph gives the same gradient."""

    hint = (
        "After `backward(retain_graph=True)`, `backward` runs again with the same `ctx`. Does it find what `forward` "
        "put there?"
    )

    after = ("exchanges_rows",)

    @staticmethod
    def probe(seed: int, Exchange: Any) -> Evidence:
        return {"ranks": on_ranks(_twice, 3, seed + 5, Exchange)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for i, what in enumerate(("the first backward pass", "the second backward pass, with retain_graph=True")):
            pairs = zip(seen["ranks"], expected["ranks"], strict=True)
            texts = [wrong_tensor(got["passes"][i], want["right"], {}) for got, want in pairs]
            if said := by_rank(f"uneven, the gradient of {what}", texts):
                return said
        return None


EXCHANGE = (ExchangesRows, TakesAnyLayout, GoesBackTwice)

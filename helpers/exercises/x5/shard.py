"""Check of part 1: which chunks a rank gets, and which tokens it then holds."""

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...meter.operations_seen import OperationWatch
from ...planner.simulate.fsdp import fake_process_group
from ..base import Check, Evidence
from ..probing.plain import plain
from .sequences import cut_anywhere

CASES = {  # ranks, chunks of a rank, documents, whether there is one row, whether a chunk is one token
    "2 ranks": (2, 3, 3, False, False),
    "4 ranks": (4, 4, 5, False, False),
    "3 ranks": (3, 5, 2, False, False),
    "1 rank": (1, 4, 3, False, False),
    "2 ranks, one document": (2, 2, 1, False, False),
    "3 ranks, a batch of one row": (3, 2, 4, True, False),
    "2 ranks, chunks of one token": (2, 3, 3, False, True),
    "4 ranks, one chunk each, one row, chunks of one token": (4, 1, 2, True, True),
}
DEALT = {  # ranks, chunk, lengths
    # fewest chunks first is another order; so is work in which a token does not count itself
    "2 ranks, long before short": (2, 2, (8, 4, 1, 3, 1, 3)),
    # a rank has as much work as a higher one, and more chunks
    "2 ranks, a tie": (2, 2, (2, 4, 9, 2, 2, 1)),
    # or fewer
    "2 ranks, another tie": (2, 2, (2, 2, 3, 5)),
    # beyond two chunks per rank, zigzag order is another one
    "2 ranks, one document in six chunks": (2, 2, (12,)),
    # the rank with the least work has its share: of the others, the one with the least work is not the first, and
    # neither the one before that rank nor the one behind it
    "4 ranks, one with its share": (4, 2, (2, 2, 2, 6, 4)),
    # FP32 does not tell the work of the second chunk from that of the last, which is one key more
    "2 ranks, work beyond 2^24": (2, 4096, (7905, 8057, 194, 228)),
}
UNEVEN = (  # ranks, chunk, lengths: over are a token, 3, half a chunk, a chunk for 2 ranks, 2 for 4, 1 for 3, a token
    (2, 4, (9, 8)),
    (2, 4, (9, 6)),
    (2, 4, (5, 5)),
    (2, 4, (7, 5)),
    (4, 2, (3, 9)),
    (3, 2, (5, 3)),
    (1, 4, (5, 4)),
)


def _numbers(tensor: Any) -> Any:
    """Return a tensor of whole numbers as nested lists, its dtype where it is another, and else the type's name."""
    if not isinstance(tensor, Tensor):
        return type(tensor).__name__
    return plain(tensor).tolist() if tensor.dtype == torch.int64 else str(tensor.dtype).removeprefix("torch.")


def _order(dealt: Any) -> list[list[int]] | str:
    """Return an order as lists of int; the type's name if it is none."""
    try:
        return [[int(number) for number in chunks] for chunks in dealt]
    except (TypeError, ValueError):
        return type(dealt).__name__


def _dealt(deal: Any, ranks: int, chunk: int, lengths: tuple[int, ...]) -> Evidence:
    """Return how `deal` deals, and whether the list of lengths is still the same afterwards."""
    given = list(lengths)
    order = _order(deal(given, ranks, chunk))
    return {"lengths": list(lengths), "chunk": chunk, "order": order, "lengths_kept": given == list(lengths)}


def _refusal(deal: Any, ranks: int, chunk: int, lengths: tuple[int, ...]) -> str:
    """Return the name of the error with which `deal` refuses, "ValueError" for its own kinds; "" if it goes on."""
    try:
        deal(list(lengths), ranks, chunk)
    except NotImplementedError:
        raise
    except Exception as error:
        return "ValueError" if isinstance(error, ValueError) else type(error).__name__
    return ""


class _Calls(OperationWatch):
    """Notes which functions of `torch.distributed` send or wait for something."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if func.namespace in ("c10d", "_c10d_functional"):
            self.names.append(func._schema.name.partition("::")[2].strip("_"))


@contextmanager
def _rank_without_others(ranks: int) -> Iterator[None]:
    """Make this process rank 0 of `ranks`, of which the others are not there: what it sends goes nowhere."""
    if dist.is_initialized():  # a group of the notebook's own; it is left alone
        yield
        return
    with fake_process_group(ranks):
        yield


def _communicates(deal: Any, shard: Any) -> list[str]:
    """Return which communication `deal` and `shard` start where there is a process group."""
    order, tokens = [[0, 3], [1, 2]], torch.arange(8).view(1, 8)
    with _rank_without_others(2), _Calls() as calls:
        for ask in (lambda: deal([3, 5], 2, 2), lambda: shard(tokens, [3, 5], order, 0)):
            with suppress(Exception):  # without the others it may fail; what it does otherwise is seen below
                ask()
    return calls.names


class ChunksAreDealtByWork(Check):
    """Chunks are dealt by the keys that their queries see; each rank gets its inputs, targets and positions."""

    points = 1
    hint = (
        "A token at position p of its document sees p + 1 keys. How many do the tokens of a chunk see together?\n"
        "sorted(range(chunks), key=...) keeps equal items in their order. Which rank gets the next chunk? A rank that "
        "has its share gets no more.\n"
        "Make positions and targets of the whole sequence first: each document counts from 0, and its last token has "
        "no target. Then take the rank's chunks of all three."
    )

    @staticmethod
    def probe(seed: int, deal: Any, shard: Any) -> Evidence:
        rng = random.Random(seed)
        calls, refused = _communicates(deal, shard)[:3], [_refusal(deal, *uneven) for uneven in UNEVEN]
        seen: Evidence = {}
        for number, (case, (ranks, per, documents, one_row, short)) in enumerate(CASES.items()):
            batch, chunk = 1 if one_row else rng.randint(2, 3), 1 if short else rng.randint(3, 6)
            lengths = cut_anywhere(rng, ranks * per * chunk, documents)
            numbers = rng.sample(range(ranks * per), ranks * per)  # not as dealt: a mistake there costs nothing more
            order = [sorted(numbers[per * rank : per * (rank + 1)]) for rank in range(ranks)]
            generator = torch.Generator().manual_seed(seed + number)
            tokens = torch.randint(1000, (batch, ranks * per * chunk), generator=generator)
            tokens[torch.rand(tokens.shape, generator=generator) < 0.1] = 0  # a token like any other
            given = tokens.clone(), list(lengths), [list(chunks) for chunks in order]
            parts = [tuple(shard(*given, rank)) for rank in range(ranks)]
            kept = torch.equal(given[0], tokens) and given[1:] == (list(lengths), order)
            seen[case] = {
                "parts": [[_numbers(tensor) for tensor in part] for part in parts],
                "kept": kept,
            } | _dealt(deal, ranks, chunk, lengths)
        for case, (ranks, chunk, fixed) in DEALT.items():
            seen[case] = {"parts": [], "kept": True} | _dealt(deal, ranks, chunk, fixed)
        return {"cases": seen, "refused": refused, "calls": calls}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["calls"]:
            return f"deal or shard calls torch.distributed ({seen['calls'][0]}); each rank finds out for itself."
        for case, want in expected["cases"].items():
            got = seen["cases"][case]
            if got["order"] != want["order"]:
                return f"{case}, chunks of {want['chunk']}, documents of {want['lengths']}: {_wrong_order(got, want)}"
            if not got["lengths_kept"]:
                return f"{case}: deal changed the list `lengths`, which belongs to the caller."
            if not got["kept"]:
                return f"{case}: shard changed an argument (tokens, lengths or order), which belongs to the caller."
            for rank, (mine, right) in enumerate(zip(got["parts"], want["parts"], strict=True)):
                wrong = _wrong_part(mine, right)
                if wrong:
                    return f"{case}, rank {rank}: {wrong}"
        for (ranks, chunk, lengths), name in zip(UNEVEN, seen["refused"], strict=True):
            if name != "ValueError":
                return (
                    f"Documents of {list(lengths)}: {sum(lengths)} tokens cannot be cut into chunks of {chunk} and "
                    f"divided evenly among {ranks} rank{'s' * (ranks > 1)}, but deal did not raise ValueError."
                )
        return None


def _wrong_order(got: Evidence, want: Evidence) -> str:
    order, right = got["order"], want["order"]
    if isinstance(order, str):
        return f"deal returned a {order}; it should return a list with one list of chunk numbers per rank."
    if [len(chunks) for chunks in order] != [len(chunks) for chunks in right]:
        sizes = ", ".join(str(len(chunks)) for chunks in order)
        return f"the ranks get {sizes} chunks; each of the {len(right)} ranks should get {len(right[0])}."
    if [sorted(chunks) for chunks in order] == right:
        return "each rank gets the right chunks, but not in ascending order."
    rank = next(rank for rank, (a, b) in enumerate(zip(order, right, strict=True)) if a != b)
    work = [_work(want, chunks) for chunks in (order[rank], right[rank])]
    tie = " as well. How are ties broken, between chunks and between ranks?" if work[0] == work[1] else ""
    return (
        f"rank {rank} gets the chunks {_short(order[rank])}, whose queries see {work[0]} keys. Dealt by work, it gets "
        f"{_short(right[rank])}, whose queries see {work[1]}{tie or '.'}"
    )


def _work(case: Evidence, chunks: list[int]) -> int:
    """Return how many keys the queries of `chunks` see."""
    see = [place + 1 for length in case["lengths"] for place in range(length)]
    return sum(sum(see[case["chunk"] * number : case["chunk"] * (number + 1)]) for number in chunks)


def _wrong_part(mine: list[Any], right: list[Any]) -> str | None:
    if len(mine) != 3:
        return f"{len(mine)} values were returned; expected (inputs, targets, positions)."
    if mine[2] != right[2]:
        return _wrong_positions(mine[2], right[2])
    for name, tensor, goal in zip(("inputs", "targets"), mine, right, strict=False):
        if tensor != goal:
            return _wrong_tokens(name, tensor, goal)
    return None


def _wrong_positions(got: Any, want: list[int]) -> str:
    if not isinstance(got, list):
        return f"the positions are {got}; they should be a tensor of int64."
    if len(got) != len(want):
        return f"{len(got)} positions were returned; expected {len(want)}."
    return f"the positions are {_short(got)}; counted from 0 in each document they are {_short(want)}."


def _wrong_tokens(name: str, got: Any, want: list[list[int]]) -> str:
    if not isinstance(got, list):
        return f"the {name} are {got}; they should be a tensor of int64."
    a, b = torch.tensor(got), torch.tensor(want)
    if a.shape != b.shape:
        return f"the {name} have shape {tuple(a.shape)}; expected {tuple(b.shape)}."
    wrong = (a != b).any(0).nonzero().flatten().tolist()
    ends = (b == -100).all(0).nonzero().flatten().tolist()
    if name == "targets" and wrong == ends:
        return "the last token of a document has a target, from the next document; it should be -100."
    return f"the {name} are wrong for {len(wrong)} of {b.shape[1]} tokens; the first is the token at index {wrong[0]}."


def _short(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:10])) + (", …" if len(numbers) > 10 else "")


SHARD = (ChunksAreDealtByWork,)

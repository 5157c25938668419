"""Check of the all-reduce that a learner builds of messages to the neighbour."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ..base import Check, Evidence
from ..probing.distance import relative_distance
from ..probing.named_case import case_named, note_case
from ..probing.on_ranks import on_ranks
from .messages import Messages

Ring = Callable[[torch.Tensor], None]
SAME = 1e-6  # relative: FP32 sums of four numbers in another order differ by less
# ranks -> lengths of the vectors: with and without a remainder, and shorter than there are ranks
LENGTHS = {1: (5,), 2: (8, 7, 1), 3: (12, 13, 14, 2), 4: (16, 17, 19, 3, 1)}
AROUND = 3  # elements before and after the vector, in the tensor of which it is a part


def _vector(seed: int, rank: int, length: int, dtype: torch.dtype) -> torch.Tensor:
    """Return what a rank brings along: a part of a larger tensor of sevens."""
    generator = torch.Generator().manual_seed(1000 * seed + 100 * length + rank)
    whole = torch.full((length + 2 * AROUND,), 7.0, dtype=dtype)
    whole[AROUND:-AROUND] = torch.randn(length, generator=generator, dtype=torch.float64).to(dtype)
    return whole


def _rank(ring_all_reduce: Ring, seed: int, dtype: str, folder: str) -> list[Evidence]:
    """One rank: the learner's ring on vectors of each length, and PyTorch's all-reduce on copies of them."""
    rank, seen = dist.get_rank(), []
    for length in LENGTHS[dist.get_world_size()]:
        note_case(folder, _elements(length))
        whole = _vector(seed, rank, length, getattr(torch, dtype))
        inside = whole[AROUND:-AROUND]
        own = inside.clone()
        dist.all_reduce(own)
        with Messages() as messages:
            returned = ring_all_reduce(inside)
        around = torch.cat([whole[:AROUND], whole[-AROUND:]])
        seen.append(
            {
                "values": whole[AROUND:-AROUND].double().tolist(),
                "all_reduce": own.double().tolist(),
                "around": around.tolist(),
                "returned": type(returned).__name__,
                "sent": messages.sent,
                "received": messages.received,
                "collectives": messages.collectives,
                "bytes": inside.nbytes,
                "size": inside.element_size(),
            }
        )
    return seen


def _runs(seed: int, ring_all_reduce: Ring, *numbers: int, dtype: str = "float32") -> Evidence:
    """Return, by number of ranks, what each rank saw at each length."""
    seen = {}
    for n in numbers:
        with case_named(n) as folder:
            seen[str(n)] = on_ranks(_rank, n, ring_all_reduce, seed, dtype, folder)
    return seen


def _cases(seen: Evidence, expected: Evidence) -> Any:
    """Yield (ranks, rank, length, what was seen, what the reference saw), in the order in which to complain."""
    for ranks in map(int, expected):
        for i, length in enumerate(LENGTHS[ranks]):
            for rank in range(ranks):
                yield ranks, rank, length, seen[str(ranks)][rank][i], expected[str(ranks)][rank][i]


def _where(ranks: int, rank: int, length: int) -> str:
    return f"{ranks} rank{'s' * (ranks > 1)}, {_elements(length)}, rank {rank}"


def _elements(length: int) -> str:
    return f"{length} element{'s' * (length > 1)}"


class SumsOnEveryRank(Check):
    """Every rank ends with the sum over all ranks, as after `dist.all_reduce`: any number of ranks, any length."""

    hint = (
        "Write down for 3 ranks which piece each rank holds complete after N - 1 rounds.\n"
        "`vector.tensor_split(n)` always makes n pieces, some of them shorter or empty; `chunk` may make fewer.\n"
        "Round `step`: rank r sends piece (r - step) % n and receives piece (r - step - 1) % n. "
        "It adds what comes in the first n - 1 rounds, and overwrites in the others."
    )

    @staticmethod
    def probe(seed: int, ring_all_reduce: Ring) -> Evidence:
        return _runs(seed, ring_all_reduce, 1, 2, 3, 4)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for ranks, rank, length, got, want in _cases(seen, expected):
            mine, right = got["values"], want["all_reduce"]
            if relative_distance(mine, right) <= SAME:
                continue
            where = _where(ranks, rank, length)
            wrong = [i for i, (a, b) in enumerate(zip(mine, right, strict=True)) if not abs(a - b) <= SAME * abs(b)]
            i = wrong[0] if wrong else 0
            if relative_distance(mine, [x / ranks for x in right]) <= SAME:
                return f"{where}: this is the mean; the sum is wanted."
            return (
                f"{where}: {len(wrong)} of {length} elements are wrong, element {i} first: {mine[i]:.6g}; "
                f"`dist.all_reduce` gives {right[i]:.6g}."
            )
        return None


class AllRanksHaveTheSameBits(Check):
    """All ranks end with the same numbers to the last bit."""

    hint = (
        "Who adds up a piece, and who only copies it? If two ranks add the same numbers in different orders, "
        "they round differently.\nIn the second half nothing is computed: what arrives is copied as it is."
    )

    @staticmethod
    def probe(seed: int, ring_all_reduce: Ring) -> Evidence:
        return _runs(seed + 1, ring_all_reduce, 3)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for ranks, rank, length, got, _ in _cases(seen, expected):
            first = seen[str(ranks)][0][LENGTHS[ranks].index(length)]["values"]
            if got["values"] != first:
                most = max(abs(a - b) for a, b in zip(got["values"], first, strict=True))
                return f"{_where(ranks, rank, length)}: differs from rank 0, by up to {most:.2g}."
        return None


class SendsNoMoreThanARing(Check):
    """A rank sends 2 (N - 1) pieces of an N-th of the vector, and no more bytes."""

    hint = (
        "Does a whole vector travel, where a piece of it would do?\n"
        "N - 1 rounds of adding, N - 1 rounds of copying, one piece of length / N in each."
    )

    @staticmethod
    def probe(seed: int, ring_all_reduce: Ring) -> Evidence:
        return _runs(seed + 2, ring_all_reduce, 2, 3, 4)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for ranks, rank, length, got, want in _cases(seen, expected):
            where = _where(ranks, rank, length)
            sent, rounds = sum(nbytes for _, nbytes in got["sent"]), 2 * (ranks - 1)
            piece = -(-length // ranks) * want["size"]  # the largest
            ratio = sent / want["bytes"]
            if sent > rounds * piece:
                return f"{where}: it sent {ratio:.3g} times its vector; 2 (N - 1) / N = {rounds / ranks:.3g} is enough."
            if len(got["sent"]) > rounds:
                return f"{where}: it sent {len(got['sent'])} messages; 2 (N - 1) = {rounds} are enough."
            if sum(n for _, n in got["received"]) > rounds * piece:
                return f"{where}: it received more than 2 (N - 1) pieces."
        return None


class TalksToItsNeighbours(Check):
    """A rank sends to rank + 1 alone, receives from rank - 1 alone, and calls no collective."""

    hint = (
        "The ring closes: the last rank's neighbour is rank 0. `% n` on both sides.\n"
        "`dist.P2POp(dist.isend, piece, (rank + 1) % n)` and `dist.P2POp(dist.irecv, space, (rank - 1) % n)`."
    )

    @staticmethod
    def probe(seed: int, ring_all_reduce: Ring) -> Evidence:
        return _runs(seed + 3, ring_all_reduce, 3)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for ranks, rank, length, got, _ in _cases(seen, expected):
            where = _where(ranks, rank, length)
            if got["collectives"]:
                return f"{where}: it called {got['collectives'][0]}; build it of sends and receives alone."
            right, left = (rank + 1) % ranks, (rank - 1) % ranks
            for verb, log, neighbour in (("sent to", got["sent"], right), ("received from", got["received"], left)):
                others = sorted({other for other, _ in log} - {neighbour})
                if others:
                    who = "anybody" if others[0] < 0 else f"rank {others[0]}"
                    return f"{where}: it {verb} {who}; its neighbour on that side is rank {neighbour}."
            if ranks > 1 and length >= ranks and not got["sent"]:
                return f"{where}: it sent nothing that this check can see; send with torch.distributed."
        return None


class WorksInPlace(Check):
    """The sum stands in `vector` itself, nothing around it is touched, any floating-point format is kept."""

    hint = (
        "Does a slice of a larger tensor come back changed, with its surroundings as they were?\n"
        "Pieces of `tensor_split` are views: `piece += arrived` and `piece.copy_(arrived)` write into the vector.\n"
        "`torch.empty_like(piece)` is as long and of the same format as what arrives."
    )

    @staticmethod
    def probe(seed: int, ring_all_reduce: Ring) -> Evidence:
        return _runs(seed + 4, ring_all_reduce, 4, dtype="float64")

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for rank, (got, want) in enumerate(zip(seen["4"], expected["4"], strict=True)):
            for length, mine, right in zip(LENGTHS[4], got, want, strict=True):
                where = f"FP64, {_where(4, rank, length)}"
                if mine["returned"] != "NoneType":
                    return f"{where}: you return a {mine['returned']}; write the sum into `vector` and return nothing."
                if mine["around"] != right["around"]:
                    return f"{where}: elements outside of the vector have changed."
                far = relative_distance(mine["values"], right["all_reduce"])
                if not far <= 1e-12:
                    return f"{where}: off by {far:.2g} (relative). In FP64 the sum has 15 digits."
        return None


RING = (SumsOnEveryRank, AllRanksHaveTheSameBits, SendsNoMoreThanARing, TalksToItsNeighbours, WorksInPlace)

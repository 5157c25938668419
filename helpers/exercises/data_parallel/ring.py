"""Check of the all-reduce that a learner builds from messages to its neighbors."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ..base import Check, Evidence
from ..probing.cases import case_name, cases_on_ranks
from ..probing.distance import relative_distance
from .messages import Messages

Ring = Callable[[torch.Tensor], None]
SAME = 1e-6  # relative: FP32 sums of four numbers in another order differ by less
SINGLE, DOUBLE = "float32", "float64"


def _named(single: tuple[int, ...], double: tuple[int, ...] = ()) -> dict[str, tuple[int, str]]:
    """Return cases (length, format) by name, of vectors in FP32 and FP64."""
    names = {f"{n} element{'s' * (n != 1)}": (n, SINGLE) for n in single}
    return names | {f"{n} elements in FP64": (n, DOUBLE) for n in double}


# ranks -> vectors: with and without a remainder, and shorter than there are ranks
VECTORS = {
    1: _named((5,)),
    2: _named((8, 7, 1)),
    3: _named((12, 13, 14, 2, 0)),
    4: _named((16, 17, 19, 3, 1), double=(16, 17, 19, 3)),
}
AROUND = 3  # elements before and after the vector, in the tensor of which it is a part


def _vector(seed: int, rank: int, length: int, dtype: str) -> torch.Tensor:
    """Return the tensor that holds a rank's vector, with sevens before and after it."""
    generator = torch.Generator().manual_seed(1000 * seed + 100 * length + rank)
    whole = torch.full((length + 2 * AROUND,), 7.0, dtype=getattr(torch, dtype))
    whole[AROUND:-AROUND] = torch.randn(length, generator=generator, dtype=torch.float64)
    return whole


def _sum(ring_all_reduce: Ring, seed: int, case: tuple[int, str]) -> Evidence:
    """One rank: the learner's ring on a vector, and PyTorch's all-reduce on a copy of it."""
    whole = _vector(seed, dist.get_rank(), *case)
    inside = whole[AROUND:-AROUND]
    own = inside.clone()
    dist.all_reduce(own)
    with Messages() as messages:
        returned = ring_all_reduce(inside)
    return {
        "values": inside.double().tolist(),
        "in_the_tensor": whole[AROUND:-AROUND].double().tolist(),
        "all_reduce": own.double().tolist(),
        "around": torch.cat([whole[:AROUND], whole[-AROUND:]]).tolist(),
        "returned": type(returned).__name__,
        "sent": messages.sent,
        "received": messages.received,
        "collectives": messages.collectives,
    }


def observe(seed: int, ring_all_reduce: Ring) -> Evidence:
    """Return what each rank saw with each vector."""
    return cases_on_ranks(_sum, VECTORS, ring_all_reduce, seed)


def _cases(seen: Evidence, expected: Evidence, *dtypes: str) -> Any:
    """Yield (where, ranks, rank, length, what was seen, what the reference saw), in the order in which to complain."""
    for ranks, vectors in VECTORS.items():
        for name, (length, dtype) in vectors.items():
            case = case_name(ranks, name)
            for rank in range(ranks) if dtype in dtypes else ():
                yield f"{case}, rank {rank}", ranks, rank, length, seen[case][rank], expected[case][rank]


class SumsOnEveryRank(Check):
    """Every rank ends with the sum over all ranks, as after `dist.all_reduce`: any number of ranks, any length."""

    hint = (
        "Write down for 3 ranks which chunk each rank has completed after N - 1 rounds.\n"
        "`vector.tensor_split(n)` always makes n views, some of them shorter or empty; `chunk` may make fewer.\n"
        "What a rank has just received is what it sends in the next round. In round 0 rank r sends chunk r."
    )

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for where, ranks, _, length, got, want in _cases(seen, expected, SINGLE):
            mine, right = got["values"], want["all_reduce"]
            if relative_distance(mine, right) <= SAME:
                continue
            wrong = [i for i, (a, b) in enumerate(zip(mine, right, strict=True)) if not abs(a - b) <= SAME * abs(b)]
            i = wrong[0] if wrong else 0
            if relative_distance(mine, [x / ranks for x in right]) <= SAME:
                return f"{where}: this is the mean; it should be the sum."
            return (
                f"{where}: {len(wrong)} of {length} elements are wrong, element {i} first: {mine[i]:.6g}; "
                f"`dist.all_reduce` gives {right[i]:.6g}. In which round does its chunk reach this rank?"
            )
        return None


class AllRanksHaveTheSameBits(Check):
    """All ranks end with the same numbers to the last bit."""

    hint = (
        "Which rank adds up a chunk, and which only copy it? If two ranks add the same numbers in different orders, "
        "they round differently.\nIn the second half nothing is computed: the chunk that arrives is copied unchanged."
    )

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        first: list[float] = []
        for where, _, rank, _, got, _ in _cases(seen, expected, SINGLE, DOUBLE):
            first = got["values"] if rank == 0 else first
            if got["values"] != first:
                most = max(abs(a - b) for a, b in zip(got["values"], first, strict=True))
                return (
                    f"{where}: differs from rank 0 by up to {most:.2g}. Which rank adds up a chunk, and do the others "
                    "copy it?"
                )
        return None


class SendsNoMoreThanARing(Check):
    """A rank sends 2 (N - 1) chunks of 1/N of the vector, and no more bytes."""

    hint = (
        "Does your code send a whole vector where a chunk would do?\n"
        "N - 1 rounds of adding, N - 1 rounds of copying, one chunk of length / N in each."
    )

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for where, ranks, _, length, got, _ in _cases(seen, expected, SINGLE):
            rounds, size = 2 * (ranks - 1), 4  # bytes of an element
            piece = -(-length // ranks) * size  # the largest
            sent, received = (sum(nbytes for _, nbytes in got[way]) for way in ("sent", "received"))
            if sent > rounds * piece:
                ratio, enough = sent / size / length, rounds / ranks
                return f"{where}: it sent {ratio:.3g} times its vector; 2 (N - 1) / N = {enough:.3g} is enough."
            if len(got["sent"]) > rounds:
                return f"{where}: it sent {len(got['sent'])} messages; 2 (N - 1) = {rounds} are enough."
            largest = max((nbytes for _, nbytes in got["sent"]), default=0)
            if largest > piece:
                return (
                    f"{where}: it sent a message of {largest // size} elements; "
                    f"1/N of the vector, rounded up, is {piece // size}."
                )
            if received > rounds * piece:
                return (
                    f"{where}: it received {received // size} elements; 2 (N - 1) chunks have at most "
                    f"{rounds * piece // size}."
                )
        return None


class SendsToItsNeighborsOnly(Check):
    """A rank sends only to rank + 1, receives only from rank - 1, and calls no collective."""

    hint = (
        "The ring is closed: the last rank's neighbor is rank 0. Use `% n` on both sides.\n"
        "`dist.P2POp(dist.isend, piece, (rank + 1) % n)` and `dist.P2POp(dist.irecv, space, (rank - 1) % n)`."
    )

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for where, ranks, rank, length, got, _ in _cases(seen, expected, SINGLE):
            if got["collectives"]:
                return f"{where}: it called {got['collectives'][0]}; build it from sends and receives only."
            right, left = (rank + 1) % ranks, (rank - 1) % ranks
            for verb, log, neighbor in (("sent to", got["sent"], right), ("received from", got["received"], left)):
                others = sorted({other for other, _ in log} - {neighbor})
                if others:
                    who = "no particular rank" if others[0] < 0 else f"rank {others[0]}"
                    return f"{where}: it {verb} {who}; its neighbor on that side is rank {neighbor}."
            if ranks > 1 and length >= ranks and not got["sent"]:
                return f"{where}: it sent nothing that this check can see; send with torch.distributed."
        return None


class WorksInPlace(Check):
    """The sum is in `vector` itself, nothing around it changes, and any floating-point dtype is kept."""

    hint = (
        "If `vector` is a slice of a larger tensor, does only the slice change?\n"
        "The chunks of `tensor_split` are views: `chunk += arrived` and `chunk.copy_(arrived)` write into the vector.\n"
        "`torch.empty_like(chunk)` has the length and the dtype of the chunk that arrives."
    )

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for where, _, _, _, mine, right in _cases(seen, expected, DOUBLE):
            if mine["returned"] != "NoneType":
                return f"{where}: it returns a {mine['returned']}; write the sum into `vector` and return nothing."
            if mine["around"] != right["around"]:
                return f"{where}: elements outside the vector have changed. Which tensor is written to?"
            if mine["in_the_tensor"] != mine["values"]:
                return (
                    f"{where}: `vector` has new memory, and the tensor of which it was a slice does not hold the sum. "
                    "Write into the chunks, or use `copy_`."
                )
            far = relative_distance(mine["values"], right["all_reduce"])
            if not far <= 1e-12 and SumsOnEveryRank.judge(seen, expected):
                return "Not judged until the sums in FP32 are correct: see sums_on_every_rank."
            if not far <= 1e-12:
                return (
                    f"{where}: off by {far:.2g} (relative). In FP64 about 15 digits should be correct. "
                    "Which dtype does the buffer for the arriving chunk have?"
                )
        return None


RING = (SumsOnEveryRank, AllRanksHaveTheSameBits, SendsNoMoreThanARing, SendsToItsNeighborsOnly, WorksInPlace)

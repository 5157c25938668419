"""Queries, keys and values of packed documents, drawn from a seed, and the chunks of them that ranks hold."""

import random
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

# The last entry of queries, its sign changing from row to row, and that of keys, from chunk to chunk: a row has scores
# above 280 and below -280, and FP32 holds no exponentials of these, nor of their differences from each other or from
# -100. (In the first chunk of a document, every second row has only scores below -280.) In the other head that shares
# the keys, and in the other sequence, it is the other rows. The entry of keys is small, so that rounding shows little
# in the gradient of queries.
FAR = (450.0, 2.0)
# Instead of 450: then masked scores of -10,000, or of -65,504 as in FP16, count as the largest. Rounding shows a lot,
# though.
FARTHER = 1.1e5
ITEM = 2  # bytes of a number in BF16


@dataclass(frozen=True)
class Case:
    """Documents in one sequence, and the ranks that share it.

    Attributes:
        ranks: how many share the sequence.
        per: chunks of a rank.
        chunk: tokens of a chunk.
        heads, kv_heads: of the queries, and of keys and values.
        width: of a head.
        order: the chunks of each rank.
        lengths: of the documents.
        batch: sequences.
        far: the last entry of queries; if it is large, so are the scores of every second row, and those of the rows
            between are far below zero. 0: an entry like others.
        idle: a rank whose gradient of the output is zero, as where no token has a target; None if there is none.
        fine: whether a number that is rounded too early shows: there are enough numbers, and sums over many chunks.
    """

    ranks: int
    per: int
    chunk: int
    heads: int
    kv_heads: int
    width: int
    order: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...]
    batch: int = 1
    far: float = 0.0
    idle: int | None = None
    fine: bool = False

    @property
    def part(self) -> int:
        """Tokens of a rank."""
        return self.per * self.chunk

    @property
    def starts(self) -> Tensor:
        """For each position of the sequence, the first position of its document."""
        ends = torch.tensor(self.lengths).cumsum(0)
        return torch.repeat_interleave(ends - torch.tensor(self.lengths), torch.tensor(self.lengths))

    @property
    def block_bytes(self) -> int:
        """Bytes of the keys and values of a rank, in BF16."""
        return 2 * ITEM * self.batch * self.kv_heads * self.part * self.width

    @property
    def scores_bytes(self) -> int:
        """Bytes of the scores of all queries of a rank with all keys of a rank, in FP32."""
        return 4 * self.batch * self.heads * self.part**2

    @property
    def pair_flops(self) -> int:
        """FLOPs with which one query meets one key and its value, in all heads: two products."""
        return 4 * self.batch * self.heads * self.width

    def needed(self, rank: int) -> int:
        """Return how many pairs of chunks rank `rank` has to multiply: those with a query that sees a key."""
        starts = self.starts[:: self.chunk]
        return sum(
            int(column <= row and starts[row] < (column + 1) * self.chunk)
            for row in self.order[rank]
            for column in range(self.ranks * self.per)
        )

    def seen(self, rank: int) -> int:
        """Return how many keys the queries of rank `rank` see, all together."""
        see = (torch.arange(sum(self.lengths)) - self.starts + 1).unflatten(0, (-1, self.chunk)).sum(1)
        return int(see[list(self.order[rank])].sum())

    def __str__(self) -> str:
        far = ", large scores and scores far below zero" if self.far == FAR[0] else ""
        far += ", scores below -10,000" if self.far == FARTHER else ""
        single = ", chunks of one token" if self.chunk == 1 else ""
        heads = f"{self.heads} heads over {self.kv_heads}" if self.heads > 1 else "one head"
        documents = f"{len(self.lengths)} document{'s' * (len(self.lengths) > 1)}"
        fine = ", rounding measured" if self.fine else ""
        fine += f", no gradient on rank {self.idle}" if self.idle is not None else ""
        return f"{self.ranks} rank{'s' * (self.ranks > 1)}, {documents}, {heads}{single}{far}{fine}"


class Shard(NamedTuple):
    """What a rank holds: leaves q (B, H, t, D), k and v (B, h, t, D), and the gradient of its output, as q."""

    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor


def _dealt(rng: random.Random, ranks: int, per: int) -> tuple[tuple[int, ...], ...]:
    """Return an order in which any rank may have any chunks."""
    numbers = list(range(ranks * per))
    rng.shuffle(numbers)
    return tuple(tuple(sorted(numbers[per * rank : per * (rank + 1)])) for rank in range(ranks))


def cut_anywhere(rng: random.Random, length: int, documents: int) -> tuple[int, ...]:
    """Return the lengths of documents whose borders lie anywhere."""
    borders = [0, *sorted(rng.sample(range(1, length), documents - 1)), length]
    return tuple(b - a for a, b in pairwise(borders))


def cases(seed: int) -> list[Case]:
    """Return sequences of all kinds: few heads of keys or as many, scores of all sizes, one rank to four, one token."""
    rng = random.Random(seed)

    def case(ranks: int, per: int, heads: tuple[int, int], documents: int, far: float = 0.0) -> Case:
        chunk, width, batch = rng.randint(2, 5), rng.choice((4, 6, 10)), rng.randint(1, 2)
        lengths = cut_anywhere(rng, ranks * per * chunk, documents)
        return Case(ranks, per, chunk, *heads, width, _dealt(rng, ranks, per), lengths, batch, far)

    usual = [case(2, 2, (3, 3), 1), case(4, 2, (4, 2), 3), case(4, 3, (4, 2), 2, FAR[0]), case(2, 3, (6, 2), 5)]
    usual += [case(1, 2, (2, 1), 2), case(3, 1, (2, 2), 2)]
    usual[1] = replace(usual[1], idle=seed % 4)
    usual[2] = replace(_blind_first(usual[2], rng), batch=2)
    single = Case(3, 2, 1, 1, 1, 4, _dealt(rng, 3, 2), cut_anywhere(rng, 6, 2))
    short = rng.randint(5, 11)  # beside a document that fills the rest of 96 tokens
    fine = Case(4, 3, 8, 4, 2, 32, _dealt(rng, 4, 3), (short, 96 - short), fine=True)
    return [*usual, single, fine, case(2, 2, (2, 2), 2, FARTHER)]


def _blind_first(case: Case, rng: random.Random) -> Case:
    """Return `case` with two documents and a border in a chunk of which the last rows first meet keys they don't see.

    At least two rows do, one of which has only scores far below zero.
    """
    row, chunk = case.order[0][1], max(case.chunk, 3)
    border = chunk * row + rng.randint(1, chunk - 2)
    return replace(case, chunk=chunk, lengths=(border, chunk * case.ranks * case.per - border))


def traffic_cases(seed: int) -> list[Case]:
    """Return sequences of many chunks of which most do not meet, beside one long document: of 4 ranks, 2, and 1."""
    rng = random.Random(seed)
    found = []
    for ranks in (4, 2, 1):
        chunk, width = rng.randint(8, 10), rng.choice((16, 24))
        length = ranks * 4 * chunk
        short = [rng.randint(chunk // 2, 3 * chunk // 2) for _ in range(2 * ranks)]
        lengths = [*short, length - sum(short)]
        rng.shuffle(lengths)
        found.append(Case(ranks, 4, chunk, 4, 2, width, _dealt(rng, ranks, 4), tuple(lengths)))
    return found


def causal_case(ranks: int, chunk: int, heads: int, kv_heads: int, width: int) -> Case:
    """Return a case with one document in zigzag order: what a step holds does not depend on where documents end."""
    order = tuple((rank, 2 * ranks - 1 - rank) for rank in range(ranks))
    return Case(ranks, 2, chunk, heads, kv_heads, width, order, (2 * ranks * chunk,))


def shard_of(seed: int, case: Case, rank: int, contiguous: bool = False) -> Shard:
    """Return the part of rank `rank` of `case`, in BF16, in memory of its own. Nothing whole survives."""
    generator = torch.Generator().manual_seed(seed)
    length, chunk = case.ranks * case.part, case.chunk
    parts = []
    for heads in (case.heads, case.kv_heads, case.kv_heads, case.heads):
        whole = torch.randn(case.batch, length, heads, case.width, generator=generator)  # as a projection leaves it
        rows = [whole[:, chunk * i : chunk * (i + 1)] for i in case.order[rank]]
        mine = torch.cat(rows, 1).bfloat16().transpose(1, 2)
        parts.append(mine.contiguous() if contiguous else mine)
    q, k, v, grad = parts
    if case.idle == rank:
        grad.zero_()
    if case.far:
        rows, heads, batch = (torch.arange(n) for n in (case.part, case.heads, case.batch))
        # Of four heads, the two that share keys differ, and so do those in the same place of both pairs.
        odd = (rows + (heads + heads // 2)[:, None] + batch[:, None, None]) % 2
        q[..., -1] = case.far * (1 - 2 * odd)
        k[..., -1] = torch.tensor([(-1) ** i * FAR[1] for i in case.order[rank]]).repeat_interleave(chunk)
    return Shard(q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), grad)

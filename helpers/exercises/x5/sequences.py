"""Queries, keys and values of a whole sequence, drawn from a seed, and the parts of them that ranks hold."""

import random
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

# The last entry of queries, its sign changing from row to row, and that of keys: scores above 105 and below -105, whose
# exponentials FP32 cannot hold. That of keys is small, so that rounding shows little in the gradient of queries.
FAR = (180.0, 2.0)


@dataclass(frozen=True)
class Case:
    """A sequence and the ranks that share it.

    Attributes:
        ranks: how many share the sequence.
        chunk: tokens of each of the 2 x `ranks` chunks.
        heads, kv_heads: of the queries, and of keys and values.
        width: of a head.
        batch: sequences.
        far: whether the scores of every second row are large, and those of the rows between far below zero.
    """

    ranks: int
    chunk: int
    heads: int
    kv_heads: int
    width: int
    batch: int = 1
    far: bool = False

    @property
    def part(self) -> int:
        """Tokens of a rank."""
        return 2 * self.chunk

    @property
    def block_bytes(self) -> int:
        """Bytes of the keys and values of a rank, in FP32."""
        return 2 * 4 * self.batch * self.kv_heads * self.part * self.width

    @property
    def scores_bytes(self) -> int:
        """Bytes of the scores of all queries of a rank with all keys of a rank, in FP32."""
        return 4 * self.batch * self.heads * self.part**2

    @property
    def block_flops(self) -> int:
        """FLOPs with which all queries of a rank meet all keys and values of a rank: two products."""
        return 4 * self.batch * self.heads * self.part**2 * self.width

    def __str__(self) -> str:
        far = ", large scores and scores far below zero" if self.far else ""
        single = ", chunks of one token" if self.chunk == 1 else ""
        heads = f"{self.heads} heads over {self.kv_heads}" if self.heads > 1 else "one head"
        return f"{self.ranks} rank{'s' * (self.ranks > 1)}, {heads}{single}{far}"


class Shard(NamedTuple):
    """What a rank holds: leaves q (B, H, t, D), k and v (B, h, t, D), and the gradient of its output, as q."""

    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor


def cases(seed: int) -> list[Case]:
    """Return sequences of all kinds: few heads of keys or as many, scores of all sizes, one rank to four, one token."""
    rng = random.Random(seed)

    def case(ranks: int, heads: int, kv_heads: int, far: bool = False) -> Case:
        return Case(ranks, rng.randint(2, 5), heads, kv_heads, rng.choice((4, 6, 10)), rng.randint(1, 2), far)

    usual = [case(2, 3, 3), case(4, 4, 2), case(4, 2, 2, far=True), case(2, 6, 2), case(1, 2, 1), case(3, 2, 2)]
    return [*usual, Case(3, 1, 1, 1, 4)]


def shard_of(seed: int, case: Case, rank: int, contiguous: bool = False) -> Shard:
    """Return the part of rank `rank` of `case`, in zigzag order, in memory of its own. Nothing whole survives."""
    generator = torch.Generator().manual_seed(seed)
    length, chunk = case.ranks * case.part, case.chunk
    parts = []
    for heads in (case.heads, case.kv_heads, case.kv_heads, case.heads):
        whole = torch.randn(case.batch, length, heads, case.width, generator=generator)  # as a projection leaves it
        late = 2 * case.ranks - 1 - rank
        rows = [whole[:, chunk * i : chunk * (i + 1)] for i in (rank, late)]
        mine = torch.cat(rows, 1).transpose(1, 2)
        parts.append(mine.contiguous() if contiguous else mine)
    q, k, v, grad = parts
    if case.far:
        q[..., ::2, -1], k[..., -1] = FAR
        q[..., 1::2, -1] = -FAR[0]
    return Shard(q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), grad)

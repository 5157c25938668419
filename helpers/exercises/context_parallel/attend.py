"""Attention of some rows on some columns, tile by tile: what each rank does with each block that visits it.

Scores exist for a few rows at a time, as in flash attention (Dao et al. 2022). What makes the blocks of several ranks
fit together is the second result, the log-sum-exp of each row's scores: with it two partial results can be merged, and
the backward pass of a block needs none of the others.
"""

import math

import torch
from torch import Tensor

from .block_log import written_down

TILE = 64  # rows whose scores exist at a time
Triple = tuple[Tensor, Tensor, Tensor]


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Return the attention of q (B, H, R, d) on k and v (B, K, C, d), and the log-sum-exp (B, H, R) of its scores.

    Args:
        q: H is a multiple of K; consecutive heads of q share one of k and v.
        causal: row i sees the columns 0 to i only; else it sees all of them.
    """
    with written_down("forward", q.shape[2], k.shape[2], causal):
        rows, k, v = (
            q.unflatten(1, (k.shape[1], -1)),
            k[:, :, None],
            v[:, :, None],
        )  # (B, K, H/K, R, d), (B, K, 1, C, d)
        out, lse = torch.empty_like(rows), rows.new_empty(rows.shape[:-1])
        for top in range(0, q.shape[2], TILE):
            tile, scores, right = _scores(rows, k, top, causal)
            lse[..., tile] = scores.logsumexp(-1)
            out[..., tile, :] = (scores - lse[..., tile, None]).exp() @ v[..., :right, :]
        return out.flatten(1, 2), lse.flatten(1, 2)


def attend_backward(gradient: Tensor, inputs: Triple, results: tuple[Tensor, Tensor], causal: bool) -> Triple:
    """Return what one block adds to the gradients of q, k and v.

    Args:
        gradient: of the rows' attention, (B, H, R, d).
        inputs: q, k and v of the block, as in `attend`.
        results: the rows' attention and log-sum-exp over ALL the columns that they see, in this block and in others.
        causal: as in `attend`.
    """
    q, k, v = inputs
    with written_down("backward", q.shape[2], k.shape[2], causal):
        split = lambda t: t.unflatten(1, (k.shape[1], -1))  # noqa: E731
        rows, gradient, out, lse = split(q), split(gradient), split(results[0]), split(results[1])
        k, v, scale = k[:, :, None], v[:, :, None], 1 / math.sqrt(q.shape[-1])
        delta = (gradient * out).sum(-1, keepdim=True)  # (B, K, H/K, R, 1)
        dq, dk, dv = (torch.zeros_like(t) for t in (rows, k, v))
        for top in range(0, q.shape[2], TILE):
            tile, scores, right = _scores(rows, k, top, causal)
            shares, g = (scores - lse[..., tile, None]).exp(), gradient[..., tile, :]
            dv[..., :right, :] += (shares.mT @ g).sum(2, keepdim=True)
            d_scores = shares * (g @ v[..., :right, :].mT - delta[..., tile, :]) * scale
            dq[..., tile, :] = d_scores @ k[..., :right, :]
            dk[..., :right, :] += (d_scores.mT @ rows[..., tile, :]).sum(2, keepdim=True)
        return dq.flatten(1, 2), dk[:, :, 0], dv[:, :, 0]


def _scores(rows: Tensor, k: Tensor, top: int, causal: bool) -> tuple[slice, Tensor, int]:
    """Return the tile that begins at row `top`, its scores, and up to which column it sees anything."""
    tile = slice(top, min(top + TILE, rows.shape[-2]))
    right = tile.stop if causal else k.shape[-2]
    scores = rows[..., tile, :] @ k[..., :right, :].mT / math.sqrt(k.shape[-1])
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=k.device).triu(1 + top)
        scores = scores.masked_fill(later, -math.inf)
    return tile, scores, right

"""Check of causal attention tile by tile: its numbers, and what of its scores exists at a time."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from ...core.device import pick_device
from ...meter.operations_seen import OperationWatch
from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence
from ..probing.distance import relative_distance
from ..probing.plain import plain

TiledAttention = Callable[[Tensor, Tensor, Tensor, int], Tensor]
SAME = 1e-4  # relative
HIGH, LOW, LOWEST = "scores of hundreds", "scores of -200 and less", "scores of -100,000 and less"
TRANSPOSED = "transposed heads, 50 rows in tiles of 16"
FAR = {HIGH: 1e-3, LOW: 1e-3, LOWEST: 0.1}  # scores of hundreds have four decimals, those of 100,000 have two
LENGTH, TILE = 256, 64  # where bytes, tiles and FLOPs are counted


def _inputs(seed: int, *shape: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(shape, generator=generator).to(pick_device()) for _ in range(3))
    return 2 * q, k, v


def _cases(seed: int) -> Iterator[tuple[str, tuple[Tensor, Tensor, Tensor], int]]:
    """Yield (case, (q, k, v), tile)."""
    for case, shape, tile in (
        ("64 rows in tiles of 16", (2, 3, 64, 8), 16),
        ("50 rows in tiles of 16", (1, 2, 50, 24), 16),
        ("9 rows in tiles of 32", (2, 1, 9, 4), 32),
        ("12 rows in tiles of 1", (1, 1, 12, 8), 1),
    ):
        yield case, _inputs(seed, *shape), tile
    q, k, v = _inputs(seed + 4, 2, 50, 3, 8)
    yield TRANSPOSED, (q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)), 16
    q, k, v = _inputs(seed + 5, 1, 2, 40, 16)
    yield HIGH, (60 * q, k, v), 16
    q, k, v = _inputs(seed + 6, 1, 2, 40, 16)
    q[..., 0], k[..., 0] = -60, 20 + k[..., 0].abs()  # of each score, -300 or less come from here
    yield LOW, (q, k, v), 16
    q, k, v = _inputs(seed + 7, 1, 2, 40, 16)
    q[..., 0], k[..., 0] = -1024, 512  # each score is lower by 131,072: a mask of -10,000 is not low enough
    yield LOWEST, (q, k, v), 16


class MatchesAttention(Check):
    """The result is that of causal attention: softmax(q kᵀ / √d) v, in which no row attends to a later column."""

    hint = (
        "Scale the scores by 1 / √d, and mask before the softmax: give a score of -inf to the "
        "columns that a row must not attend to.\n"
        "Only the tile on the diagonal is masked in part. When a row of tiles is done, divide weighted by total."
    )

    @staticmethod
    def probe(seed: int, tiled_attention: TiledAttention) -> Evidence:
        seen: Evidence = {}
        for case, (q, k, v), tile in _cases(seed):
            right = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
            out = plain(tiled_attention(q, k, v, tile))
            same = out.shape == right.shape
            off = relative_distance(out.flatten().tolist(), right.flatten().tolist()) if same else None
            seen[case] = {
                "shape": list(out.shape),
                "off": off,
                "nan_first": bool(same and out[..., 0, :].isnan().any()),
                "finite": bool(out.isfinite().all()),
            }
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got = seen[case]
            if got["shape"] != want["shape"]:
                return f"{case}: the shape should be {tuple(want['shape'])}; it is {tuple(got['shape'])}."
            if case in FAR and not got["off"] <= FAR[case]:
                off = f"off by {got['off']:.2g} of its length" if got["finite"] else "not finite"
                return (
                    f"{case}: the result is {off}. Is each row's maximum subtracted before exp, whatever its size, are "
                    "scores left as they are, and is the mask -inf?"
                )
            if got["nan_first"]:
                return f"{case}: NaN in row 0. Does a row attend to its own column?"
            if case not in FAR and not got["off"] <= SAME:
                return (
                    f"{case}: the result is off by {got['off']:.2g} of its norm. Check the scale, the "
                    "mask and the division."
                )
        return None


class _Tiles(OperationWatch):
    """Notes the largest pair of last dimensions that a product makes, other than those with the width of a head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, self.largest = width, [0, 0]

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        name = func._schema.name.removeprefix("aten::")
        for tensor in tree_leaves(result):
            is_product = "mm" in name or name in ("matmul", "linear", "einsum")
            if is_product and isinstance(tensor, Tensor) and tensor.dim() > 1 and tensor.shape[-1] != self.width:
                self.largest = max(self.largest, sorted(tensor.shape[-2:], reverse=True))


class ScoresNeverWhole(Check):
    """Matmuls make at most tile x tile scores per head, and full tiles; PyTorch's own attention is not called."""

    hint = (
        "Slice q by rows and k by columns before the matmul, not its result after.\n"
        "`q[..., top : top + tile, :] @ k[..., left : left + tile, :].mT` makes one tile of scores."
    )

    @staticmethod
    def probe(seed: int, tiled_attention: TiledAttention) -> Evidence:
        seen: Evidence = {}
        for tile in (TILE, 2 * TILE):
            q, k, v = _inputs(seed + 1, 1, 2, LENGTH, 24)
            with _Tiles(24) as tiles:
                tiled_attention(q, k, v, tile)
            seen[str(tile)] = tiles.largest
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for tile, want in expected.items():
            rows, columns = seen[tile]
            if not rows:
                return f"tile={tile}: no matmul makes scores. Write the loop yourself: q times k, a tile at a time."
            if [rows, columns] != want:
                made, right = f"{rows} x {columns}", f"{want[0]} x {want[1]}"
                return f"tile={tile}: the largest matmul makes {made} scores per head; expected {right}."
        return None


class SkipsWhatIsMasked(Check):
    """Tiles above the diagonal, in which everything is masked, cost no matmul."""

    hint = (
        "The rows of the tile that starts at `top` attend to no column from `top + tile` on. Where does the loop over "
        "columns end?"
    )

    @staticmethod
    def probe(seed: int, tiled_attention: TiledAttention) -> Evidence:
        q, k, v = _inputs(seed + 2, 1, 2, LENGTH, 24)
        with FlopCounterMode(display=False) as counter:
            tiled_attention(q, k, v, TILE)
        return {"flops": int(counter.get_total_flops())}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        times = seen["flops"] / expected["flops"]
        if not times <= 1.02:
            return f"Matmuls take {times:.2f} times the FLOPs that are needed: where does the loop over columns end?"
        if not times >= 0.98:
            return f"Matmuls take {times:.2f} times the FLOPs that are needed: which tiles are missing?"
        return None


class HoldsATileAtATime(Check):
    """Besides inputs, result and row sums, at most six tiles of scores exist at a time; the inputs are not changed."""

    hint = (
        "Which tensors of a tile are needed later? Only the state.\n"
        "Make no tensor of size T x T: neither scores, nor a mask, nor a list of tiles to concatenate later."
    )
    HEADS, WIDTH = 2, 8

    @staticmethod
    def probe(seed: int, tiled_attention: TiledAttention) -> Evidence:
        heads, width = HoldsATileAtATime.HEADS, HoldsATileAtATime.WIDTH
        given = _inputs(seed + 3, 1, heads, 2 * LENGTH, width)
        before = [t.clone() for t in given]
        with MemoryMeter(device=given[0].device) as meter:
            tiled_attention(*given, TILE)
        one = 4 * heads * TILE * TILE
        there = 5 * given[0].nbytes  # q, k, v and the result, once more as slices to be joined
        same = all(torch.equal(a, b) for a, b in zip(given, before, strict=True))
        return {"tiles": (meter.peak_bytes - there) / one, "untouched": same}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["untouched"]:
            return "q, k or v has changed; work on copies."
        if not seen["tiles"] <= 6:
            tiles = f"{seen['tiles']:.0f} tiles of scores"
            return (
                f"The peak besides inputs and result equals {tiles}; six are enough. Which tensors outlive their tile?"
            )
        return None


ATTENTION = (MatchesAttention, ScoresNeverWhole, SkipsWhatIsMasked, HoldsATileAtATime)

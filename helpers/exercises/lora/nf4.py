"""NF4 by hand: weights as indices of sixteen levels, blocks with a scale, and the scales in 8 bits."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..base import Check, Evidence
from ..probing.distance import relative_distance

# Quantiles of a bell curve, scaled to [-1, 1], with an exact zero: Dettmers et al. 2023, appendix E.
LEVELS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
BLOCK, SCALES = 64, 256  # weights to a scale, scales to a scale of their own


def _weights(seed: int, blocks: int, tiny: bool = False) -> Tensor:
    """Return weights (blocks x 64) whose blocks have very different sizes, one of them all zeros.

    Args:
        tiny: the first two blocks hold numbers near 1e-7 and 1e-12.
    """
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.rand(blocks, 1, generator=draw) + 0.05
    weights = torch.randn(blocks, BLOCK, generator=draw) * sizes
    weights[blocks // 2] = 0
    if tiny:
        weights[0], weights[1] = 1e-7 * weights[0], 1e-12 * weights[1]
    return weights.flatten()


CASES = {"one group of scales": 8, "a last group that is not full": SCALES + 3}
EQUAL = "two equal blocks, so that both scales are the mean"
TINY = "two blocks of numbers near 1e-7 and 1e-12"


def _about_blocks(name: str, part: str, numbers: list[int]) -> str:
    """Say what the blocks have in common that entries of a part belong to, or nothing."""
    each = BLOCK // 2 if part == "packed" else 1
    blocks = {number // each for number in numbers}
    if blocks == {CASES.get(name, 8) // 2}:
        return " All of them belong to a block of zeros. What is 0 / 0?"
    if name == TINY and blocks <= {0, 1}:
        return " All of them belong to blocks of small numbers. Is their scale too large?"
    return ""


def _about_halves(mine: list[int], right: list[int]) -> str:
    """Say that the two indices of each byte are swapped, or nothing."""
    same = sum(a == (b & 15) << 4 | b >> 4 for a, b in zip(mine, right, strict=True))
    return " Are the two halves of a byte swapped?" if same >= 0.998 * len(right) else ""


def _encoded(encode: Callable[..., Any], weights: Tensor) -> Evidence:
    before = weights.clone()
    packed, codes, tops, mean = encode(weights)
    named = {"packed": packed, "codes": codes, "tops": tops, "mean": mean}
    return {
        "values": {name: t.flatten().tolist() for name, t in named.items()},
        "dtypes": {name: str(t.dtype).removeprefix("torch.") for name, t in named.items()},
        "changed": not torch.equal(before, weights),
    }


class EncodesToTheNearestLevel(Check):
    """Each byte holds the indices of two levels, those nearest to w / the block's largest |w|; scales are in 8 bits."""

    hint = (
        "weights.view(-1, 64).abs().amax(1) gives the scales. Divide by them (a block of zeros by 1, not by 0). "
        "torch.bucketize finds the nearest level if its borders are halfway between two levels. A byte is first index "
        "<< 4 | second index. Subtract the scales' mean, divide each group of 256 by its largest magnitude / 127, "
        "round."
    )

    @staticmethod
    def probe(seed: int, nf4_encode: Callable[..., Any], nf4_decode: Callable[..., Any]) -> Evidence:
        seen = {name: _encoded(nf4_encode, _weights(seed, blocks)) for name, blocks in CASES.items()}
        equal = _weights(seed, 8)[:BLOCK].repeat(2)
        return seen | {
            EQUAL: _encoded(nf4_encode, equal),
            TINY: _encoded(nf4_encode, _weights(seed, 8, tiny=True)),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, want in expected.items():
            got = seen[name]
            if got["dtypes"] != want["dtypes"]:
                return f"{name}: dtypes are {got['dtypes']}; they should be {want['dtypes']}."
            for part, values in want["values"].items():
                mine = got["values"][part]
                if len(mine) != len(values):
                    return f"{name}: {part} has {len(mine):,} entries; it should have {len(values):,}."
                if part in ("tops", "mean"):
                    if not relative_distance(mine, values) <= 1e-4:
                        return f"{name}: {part} is {mine[:2]} ...; it should be {values[:2]} ..."
                    continue
                wrong = [i for i, (a, b) in enumerate(zip(mine, values, strict=True)) if a != b]
                if len(wrong) > 0.002 * len(values) + (part == "codes"):  # a tie may fall either way
                    i = wrong[0]
                    share = f"{len(wrong)} of {len(values)} {part} differ"
                    why = _about_halves(mine, values) if part == "packed" else ""
                    why = why or _about_blocks(name, part, wrong)
                    return f"{name}: {share}; number {i} is {mine[i]}; it should be {values[i]}.{why}"
            if got["changed"]:
                return f"{name}: nf4_encode has changed the weights that it was given."
        return None


class DecodesWhatWasEncoded(Check):
    """Decoding gives level · scale, for bytes from any encoder, within half a gap of the weights."""

    hint = (
        "packed >> 4 and packed & 15 are the two indices of a byte: stack them so that they alternate. A scale is "
        "code · top / 127 + mean, where top belongs to the scale's group of 256."
    )

    @staticmethod
    def probe(seed: int, nf4_encode: Callable[..., Any], nf4_decode: Callable[..., Any]) -> Evidence:
        seen = {}
        for name, blocks in CASES.items():
            draw = torch.Generator().manual_seed(seed)
            packed = torch.randint(256, (blocks * BLOCK // 2,), generator=draw).to(torch.uint8)
            codes = torch.randint(-127, 128, (blocks,), generator=draw).to(torch.int8)
            tops = torch.rand(-(-blocks // SCALES), generator=draw) + 0.1
            given = [packed, codes, tops, torch.tensor(0.7)]
            before = [t.clone() for t in given]
            decoded = nf4_decode(*given)
            changed = not all(map(torch.equal, given, before))
            weights = _weights(seed, blocks)
            again = nf4_decode(*nf4_encode(weights))
            seen[name] = {
                "decoded": decoded.flatten().tolist(),
                "dtype": str(decoded.dtype).removeprefix("torch."),
                "shape": list(decoded.shape),
                "changed": changed,
                "error": ((again - weights).norm() / weights.norm()).item() if again.shape == weights.shape else -1.0,
            }
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, want in expected.items():
            got = seen[name]
            if (got["shape"], got["dtype"]) != (want["shape"], want["dtype"]):
                wanted = f"it should be {want['dtype']} {want['shape']}"
                return f"{name}: nf4_decode returns {got['dtype']} {got['shape']}; {wanted}."
            off = relative_distance(got["decoded"], want["decoded"])
            if not off <= 1e-5:
                swapped = torch.tensor(want["decoded"]).view(-1, 2).flip(1).flatten().tolist()
                why = (
                    " Are the two halves of a byte swapped?"
                    if relative_distance(got["decoded"], swapped) <= 1e-5
                    else ""
                )
                return f"{name}: the decoded weights are off by {off:.2g} (relative).{why}"
            if got["changed"]:
                return f"{name}: nf4_decode has changed its arguments."
            if not 0 <= got["error"] <= 1.05 * want["error"]:
                off = f"off by {got['error']:.3f} (relative); an error of {want['error']:.3f} is possible"
                decodes = "nf4_decode is right for the bytes of this check, so look at what nf4_encode writes."
                return f"{name}: after encoding and decoding, the weights are {off}. {decodes}"
        return None


NF4 = (EncodesToTheNearestLevel, DecodesWhatWasEncoded)

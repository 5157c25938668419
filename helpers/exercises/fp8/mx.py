"""Checks of MXFP8: values in E4M3, and a power of two as the scale of every 32 contiguous values."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..base import Check, Evidence

BLOCK, NAN_SCALE = 32, 255  # 255 is the pattern that E8M0 keeps for NaN; any other pattern p means 2^(p - 127)
TYPES = ["torch.float8_e4m3fn", "torch.float8_e8m0fnu"]


Cases = Iterator[tuple[str, Tensor]]
Quantizer = Callable[[Tensor], tuple[Tensor, Tensor]]
About = Callable[[int, int, float], str]  # pattern, right pattern, amax -> what they point at, or nothing


def _spread(generator: torch.Generator, *shape: int, size: float = 1.0) -> Tensor:
    powers = 2.0 ** (6 * torch.randn(*shape[:-1], 1, generator=generator))
    return size * powers * torch.randn(shape, generator=generator)


def _seen(cases: Cases, mx_quantize: Quantizer) -> Evidence:
    """Note what `mx_quantize` makes of each case."""
    seen: Evidence = {}
    for case, x in cases:
        given = x.clone()
        answer = mx_quantize(given)
        if not (isinstance(answer, tuple | list) and [isinstance(a, Tensor) for a in answer] == [True, True]):
            seen[case] = {"returned": type(answer).__name__}
            continue
        values, scales = answer
        row: Evidence = {
            "types": [str(values.dtype), str(scales.dtype)],
            "shapes": [list(values.shape), list(scales.shape)],
            "untouched": torch.equal(given.nan_to_num(7.0), x.nan_to_num(7.0)),  # an infinity is kept apart below
            "x": [repr(float(number)) for number in x.flatten()],
        }
        row["untouched"] &= torch.equal(given.isfinite(), x.isfinite())
        if row["types"] == TYPES:
            row["values"] = values.float().flatten().tolist()
            row["scales"] = scales.contiguous().view(torch.uint8).flatten().tolist()
        seen[case] = row
    return seen


def _wrong(seen: Evidence, expected: Evidence, about: About) -> str | None:
    """Say what is wrong in the first case that is."""
    for case, want in expected.items():
        got = seen[case]
        if "returned" in got:
            return f"{case}: return two tensors, (values, scales); you return an object of type {got['returned']}."
        if got["types"] != TYPES:
            return f"{case}: dtypes should be {' and '.join(TYPES)}; they are {' and '.join(got['types'])}."
        if got["shapes"] != want["shapes"]:
            right, wrong = (" and ".join(map(str, row["shapes"])) for row in (want, got))
            return f"{case}: the shapes of values and scales should be {right}; they are {wrong}."
        if not got["untouched"]:
            return f"{case}: the tensor you were given has changed; work on a copy."
        wrong = _first_wrong(got, want, about)
        if wrong:
            return f"{case}: {wrong}"
    return None


class ScalesOrdinaryBlocks(Check):
    """Each block of 32 gets the smallest power of two that clips nothing, and its values in E4M3."""

    hint = (
        "Give the blocks their own dimension. Each block has one amax and one scale, by which you divide its 32 values."
    )

    @staticmethod
    def probe(seed: int, mx_quantize: Quantizer) -> Evidence:
        return _seen(_ordinary(seed), mx_quantize)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen, expected, lambda scale, right, largest: "")


def _ordinary(seed: int) -> Cases:
    generator = torch.Generator().manual_seed(seed)
    yield "activations (4, 64)", _spread(generator, 4, 64)
    yield "gradients (3, 96)", _spread(generator, 3, 96, size=1e-7)
    yield "BF16 (2, 64)", _spread(generator, 2, 64).bfloat16()


class HandlesTheShape(Check):
    """Rows of 45, 40 or 5 numbers, in one dimension or four: only the last block of a row may be short."""

    hint = "Zeros do not change an amax: pad the rows with zeros, and cut the padding off the values at the end."
    after = ("scales_ordinary_blocks",)

    @staticmethod
    def probe(seed: int, mx_quantize: Quantizer) -> Evidence:
        return _seen(_shapes(seed), mx_quantize)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen, expected, _about_shape)


def _about_shape(scale: int, right: int, largest: float) -> str:
    if scale == right + 1 or 448 < largest / 2.0 ** (scale - 127) < 512:
        return ""  # the right numbers, by another rule
    return "Each row starts a new block, and the padding of the last block must not count."


def _shapes(seed: int) -> Cases:
    generator = torch.Generator().manual_seed(seed + 1)
    yield "rows of 45 (2, 3, 45)", _spread(generator, 2, 3, 45, size=1e-4)
    yield "rows of 5 (3, 5)", _spread(generator, 3, 5, size=100.0)
    yield "one dimension (40)", _spread(generator, 40)
    yield "four dimensions (2, 1, 2, 64)", _spread(generator, 2, 1, 2, 64)
    yield "a transposed tensor (2, 64)", _spread(generator, 64, 2).t()


class KnowsItsEnd(Check):
    """An amax of 448 x 2^k gets the scale 2^k, and one just above it the next power of two."""

    hint = "torch.frexp splits a number without rounding. What does it return for 448, and for the next larger number?"
    after = ("scales_ordinary_blocks",)

    @staticmethod
    def probe(seed: int, mx_quantize: Quantizer) -> Evidence:
        return _seen(_ends(), mx_quantize)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen, expected, _about_end)


def _ends() -> Cases:
    """Rows whose amax is at or near 448 x 2^k: positive or negative, at the front or at the end."""
    powers = torch.tensor([-100, -30, -7, -1, 0, 1, 5, 23, 100])
    edge = 448 * 2.0**powers
    for case, amax in (
        ("amax of 480 x 2^k", edge / 448 * 480),
        ("amax of 448 x 2^k", edge),
        ("amax just above 448 x 2^k", torch.nextafter(edge, 2 * edge)),
        ("amax just below 448 x 2^k", torch.nextafter(edge, 0 * edge)),
    ):
        x = torch.zeros(len(powers), 2 * BLOCK)
        x[:, 0], x[:, 1], x[:, -1], x[:, -2] = amax, amax / 3, -amax, amax / 50
        yield case, x


def _about_end(scale: int, right: int, largest: float) -> str:
    quotient = largest / 2.0 ** (scale - 127)
    if 448.5 < quotient < 512:
        return f"With your scale, amax / scale is {quotient:.9g}, which is clipped, as under the standard's own rule."
    if quotient == 224:
        return "With your scale, amax / scale is 224. Half that scale would do: E4M3 can represent 448."
    if 448 < quotient < 448.5:
        return (
            f"With your scale, amax / scale is {quotient:.9g}, slightly too large. Was something rounded, such as a "
            "logarithm?"
        )
    return ""


class HandlesZerosAndTheExtremes(Check):
    """Blocks of zeros get the scale 1, tiny ones at least 2^-127, and ones with an infinity or NaN get NaN."""

    hint = "Go through the extremes one by one. torch.where decides block by block."
    after = ("scales_ordinary_blocks",)

    @staticmethod
    def probe(seed: int, mx_quantize: Quantizer) -> Evidence:
        return _seen(_extremes(seed), mx_quantize)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen, expected, _about_extreme)


def _extremes(seed: int) -> Cases:
    generator = torch.Generator().manual_seed(seed + 2)
    zeros = _spread(generator, 3, 64)
    zeros[0], zeros[1, :BLOCK], zeros[2, BLOCK:] = 0, 0, 0
    yield "blocks of zeros", zeros
    yield "a short block of zeros", zeros[:, : BLOCK + 8]
    yield "numbers near 1e-38", torch.randn(2, 64, generator=generator) * 1e-38
    yield "numbers near 1e-43", torch.randn(2, 64, generator=generator) * 1e-43
    yield "numbers near 1e38", torch.randn(2, 64, generator=generator).clamp(-3, 3) * 1e38
    broken = _spread(generator, 4, 3 * BLOCK)
    broken[0, 40], broken[1, 0], broken[2, 95], broken[3, 33] = torch.inf, torch.nan, -torch.inf, torch.nan
    yield "infinities and NaN", broken


def _about_extreme(scale: int, right: int, largest: float) -> str:
    if scale == 127 and right == 0 and largest:
        return "It got the scale of a block of zeros. Did its amax underflow to zero, perhaps in a division?"
    if not largest:
        return "The contract says which scale a block of zeros gets."
    return ""


@dataclass(frozen=True)
class _Block:
    """A block of a case, and the largest of its finite numbers, by magnitude."""

    row: int
    number: int  # of the block, in its row
    largest: float

    def __str__(self) -> str:
        return f"row {self.row}, block {self.number}"


def _first_wrong(got: Evidence, want: Evidence, about: About) -> str | None:
    """Say what is wrong in the first block that is."""
    n = want["shapes"][0][-1]
    each = math.ceil(n / BLOCK)  # blocks a row
    numbers = [float(number) for number in want["x"]]
    if len(got["scales"]) != len(want["scales"]) or len(got["values"]) != len(numbers):
        return "the number of values or scales does not match the shapes."
    pairs = list(zip(got["scales"], want["scales"], strict=True))
    inverse = all(scale + right == 254 for scale, right in pairs if right != NAN_SCALE)
    for index, (scale, right) in enumerate(pairs):
        row, number = divmod(index, each)
        inside = range(row * n + number * BLOCK, row * n + min(n, (number + 1) * BLOCK))
        largest = max((abs(numbers[i]) for i in inside if math.isfinite(numbers[i])), default=0.0)
        block = _Block(row, number, largest)
        if scale != right:
            return _about_scale(block, scale, right, inverse, about)
        if right == NAN_SCALE:
            continue  # its values are up to the learner
        for i in inside:
            if got["values"][i] != want["values"][i]:  # NaN differs from everything
                wrong = (
                    f"{block}: {numbers[i]:.9g} / 2^{right - 127} in E4M3 is {want['values'][i]:g}; "
                    f"yours is {got['values'][i]:g}. {_other_scale(numbers[i], right, got['values'][i])}"
                )
                return f"{wrong} {about(right, right, largest)}".replace("  ", " ").strip()
    return None


def _other_scale(number: float, right: int, value: float) -> str:
    """Say by which other power of two `number` seems to have been divided; nothing where that is not clear."""
    exact = number / 2.0 ** (right - 127)
    if not (math.isfinite(value) and value * exact > 0):
        return ""
    steps = round(math.log2(value / exact))
    if steps == 0 or abs(value / exact / 2.0**steps - 1) > 1 / 16:
        return ""
    return f"It was divided by 2^{right - 127 - steps}: divide by the scale that you return, as E8M0 stores it."


def _about_scale(block: _Block, scale: int, right: int, inverse: bool, about: About) -> str:
    """Say what is wrong with a scale; `inverse` where all of them are the inverse of the right ones."""
    largest = block.largest
    if right == NAN_SCALE:
        return f"{block} holds an infinity or NaN, so its scale should be NaN; it is 2^{scale - 127}."
    if scale == NAN_SCALE:
        return f"{block} is finite, so its scale should be 2^{right - 127}; it is NaN."
    why = f"{block} with amax {largest:.9g}: its scale should be 2^{right - 127}; it is 2^{scale - 127}."
    if inverse:
        return f"{why} You return the inverse of the scale; here x is about scale times values."
    if about(scale, right, largest):
        return f"{why} {about(scale, right, largest)}"
    if largest == 0:
        return why
    quotient = largest / 2.0 ** (scale - 127)
    means = "more than 448, so it is clipped" if quotient > 448 else "so a smaller power of two would do"
    return f"{why} Then amax / scale is {quotient:.9g}, {means}."


MX = (ScalesOrdinaryBlocks, HandlesTheShape, KnowsItsEnd, HandlesZerosAndTheExtremes)

"""Practice check of lab 13: MXFP8, values in E4M3 and a power of two for each 32 neighbours."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .base import Check, Evidence, Part

BLOCK, NAN_SCALE = 32, 255  # 255 is the pattern that E8M0 keeps for NaN; any other pattern p means 2^(p - 127)
TYPES = ["torch.float8_e4m3fn", "torch.float8_e8m0fnu"]


def _edges(factor: float) -> Tensor:
    """Rows whose amax is 448 x 2^k, one FP32 number beside it: positive or negative, at the front or at the end."""
    powers = (-100, -30, -7, -1, 0, 1, 5, 23, 100)
    x = torch.zeros(len(powers), 2 * BLOCK)
    for row, k in enumerate(powers):
        edge = torch.tensor(448.0 * 2.0**k)
        if factor != 1:
            edge = torch.nextafter(edge, edge * factor)
        x[row, 0], x[row, 1], x[row, -1], x[row, -2] = edge, edge / 3, -edge, edge / 50
    return x


def _cases(seed: int) -> Iterator[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)

    def spread(*shape: int, size: float = 1.0) -> Tensor:
        powers = 2.0 ** (6 * torch.randn(*shape[:-1], 1, generator=generator))
        return size * powers * torch.randn(shape, generator=generator)

    yield "activations (4, 64)", spread(4, 64)
    yield "gradients (3, 96)", spread(3, 96, size=1e-7)
    yield "rows of 45", spread(2, 3, 45, size=1e-4)
    yield "rows of 5", spread(3, 5, size=100.0)
    yield "one dimension, 40", spread(40)
    yield "BF16 (2, 64)", spread(2, 64).bfloat16()
    yield "a transposed tensor (2, 64)", spread(64, 2).t()
    yield "amax of 448 x 2^k", _edges(1)
    yield "amax just above 448 x 2^k", _edges(2)
    yield "amax just below 448 x 2^k", _edges(0.5)
    zeros = spread(3, 64)
    zeros[0], zeros[1, :BLOCK], zeros[2, BLOCK:] = 0, 0, 0
    yield "blocks of zeros", zeros
    yield "numbers near 1e-38", torch.randn(2, 64, generator=generator) * 1e-38
    yield "numbers near 1e-43", torch.randn(2, 64, generator=generator) * 1e-43
    yield "numbers near 1e38", torch.randn(2, 64, generator=generator).clamp(-3, 3) * 1e38
    broken = spread(4, 3 * BLOCK)
    broken[0, 40], broken[1, 0], broken[2, 95], broken[3, 33] = torch.inf, torch.nan, -torch.inf, torch.nan
    yield "infinities and NaN", broken


class QuantisesBlockByBlock(Check):
    """Each 32 neighbours get the smallest power of two that clips nothing, and E4M3 values to go with it."""

    hint = (
        "Pad each row with zeros to full blocks and give the blocks a dimension. torch.frexp writes an amax as "
        "f x 2^e with f from 1/2 up to 1, and 448 is 7/8 x 2^9: so the scale is 2^(e - 9), or twice that if f is above "
        "7/8. Then zeros, the lowest exponent, and what is not finite."
    )

    @staticmethod
    def probe(seed: int, mx_quantise: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Evidence:
        seen: Evidence = {}
        for case, x in _cases(seed):
            given = x.clone()
            answer = mx_quantise(given)
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

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got = seen[case]
            if "returned" in got:
                return f"{case}: return two tensors, (values, scales); you return something else: {got['returned']}."
            if got["types"] != TYPES:
                return f"{case}: dtypes should be {' and '.join(TYPES)}; they are {' and '.join(got['types'])}."
            if got["shapes"] != want["shapes"]:
                right, wrong = (" and ".join(map(str, row["shapes"])) for row in (want, got))
                return f"{case}: the shapes of values and scales should be {right}; they are {wrong}."
            if not got["untouched"]:
                return f"{case}: the tensor you were given has changed; work on a copy."
            found = _first_wrong(got, want)
            if found:
                return f"{case}: {found}"
        return None


def _first_wrong(got: Evidence, want: Evidence) -> str | None:
    """Say what is wrong in the first block that is."""
    n = want["shapes"][0][-1]
    each = math.ceil(n / BLOCK)  # blocks a row
    numbers = [float(number) for number in want["x"]]
    if len(got["scales"]) != len(want["scales"]) or len(got["values"]) != len(numbers):
        return "there are not as many values and scales as the shapes say."
    for index, (scale, right) in enumerate(zip(got["scales"], want["scales"], strict=True)):
        row, block = divmod(index, each)
        inside = range(row * n + block * BLOCK, row * n + min(n, (block + 1) * BLOCK))
        largest = max((abs(numbers[i]) for i in inside if math.isfinite(numbers[i])), default=0.0)
        if scale != right:
            return _about_scale(row, block, largest, scale, right)
        if right == NAN_SCALE:
            continue  # its values are up to the learner
        for i in inside:
            if got["values"][i] != want["values"][i]:  # NaN differs from everything
                return (
                    f"row {row}, block {block}: {numbers[i]:.9g} / 2^{right - 127} in E4M3 is {want['values'][i]:g}; "
                    f"you have {got['values'][i]:g}.{_other_scale(numbers[i], right, got['values'][i])}"
                )
    return None


def _other_scale(number: float, right: int, value: float) -> str:
    """Say by which other power of two `number` seems to have been divided; nothing where that is not clear."""
    exact = number / 2.0 ** (right - 127)
    if not (math.isfinite(value) and value * exact > 0):
        return ""
    steps = round(math.log2(value / exact))
    if steps == 0 or abs(value / exact / 2.0**steps - 1) > 1 / 16:
        return ""
    return f" That is as if divided by 2^{right - 127 - steps}: divide by the scale that you return, as E8M0 holds it."


def _about_scale(row: int, block: int, largest: float, scale: int, right: int) -> str:
    where = f"row {row}, block {block}"
    if right == NAN_SCALE:
        return f"{where} holds an infinity or NaN; its scale should be NaN and is 2^{scale - 127}."
    if scale == NAN_SCALE:
        return f"{where} is finite; its scale should be 2^{right - 127} and is NaN."
    why = f"with amax {largest:.9g}: its scale should be 2^{right - 127} and is 2^{scale - 127}"
    if largest == 0:
        return f"{where} {why}."
    quotient = largest / 2.0 ** (scale - 127)
    means = "more than 448, so it is clipped" if quotient > 448 else "so a smaller power of two would do"
    return f"{where} {why}. Then amax / scale is {quotient:.9g}, {means}."


PARTS = (Part("lab13.mx", ("mx_quantise",), (QuantisesBlockByBlock,)),)

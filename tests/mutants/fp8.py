"""Wrong and right answers for the practice task of fp8."""

from . import Mutant

MX = "fp8.mx"
ORDINARY, SHAPE, END, EXTREMES = (
    "scales_ordinary_blocks",
    "minds_the_shape",
    "knows_its_end",
    "minds_zeros_and_the_extremes",
)
EXPONENT = "exponent = exponent - 9 + (fraction > 7 / 8).int()"
AMAX = "amax = blocks.abs().amax(-1)"
VALUES = "blocks / scale[..., None]"
PADDED = "F.pad(x.float(), (0, -n % 32))"
RESHAPE = "padded.reshape(*x.shape[:-1], -1, 32)"
ZEROS = "torch.where(amax == 0, 1.0, scale)"
FINITE = "torch.where(amax.isfinite(), scale, torch.nan)"
RETURN = "    return values.to(torch.float8_e4m3fn), scale.to(torch.float8_e8m0fnu)"


def one(name: str, rejected_by: str, old: str, new: str, raises: str = "") -> Mutant:
    return Mutant(name, MX, rejected_by, ((old, new),), raises)


MUTANTS = [
    one("twice as large as needed", ORDINARY, EXPONENT, "exponent = exponent - 8"),
    one("the end of E5M2", ORDINARY, EXPONENT, "exponent = exponent - 16 + (fraction > 7 / 8).int()"),
    one("256 is the end", ORDINARY, EXPONENT, "exponent = exponent - 9 + (fraction > 1 / 2).int()"),
    one("rounded to the nearest power", ORDINARY, EXPONENT,
        "exponent = torch.log2(amax / 448).nan_to_num(0, 0, 0).round().int()"),
    one("negative numbers overlooked", ORDINARY, AMAX, "amax = blocks.amax(-1).clamp(min=0)"),
    one("one scale a row", ORDINARY, AMAX,
        "amax = blocks.abs().amax((-2, -1), keepdim=True)[..., 0].expand(blocks.shape[:-1])"),
    one("one scale a tensor", ORDINARY, AMAX, "amax = blocks.abs().max().expand(blocks.shape[:-1])"),
    one("blocks of 16", ORDINARY, ", -1, 32)", ", -1, 16)"),
    one("rounded to BF16 first", ORDINARY, PADDED, "F.pad(x.bfloat16().float(), (0, -n % 32))"),
    one("values not divided", ORDINARY, VALUES, "blocks"),
    one("multiplied by the scale", ORDINARY, VALUES, "blocks * scale[..., None]"),
    one("signs lost", ORDINARY, VALUES, "blocks.abs() / scale[..., None]"),
    one("values cut to whole numbers", ORDINARY, f"({VALUES})", f"({VALUES}).trunc()"),
    one("values in E5M2", ORDINARY, "values.to(torch.float8_e4m3fn)", "values.to(torch.float8_e5m2)"),
    one("rounded twice", ORDINARY, "values.to(torch.float8_e4m3fn)",
        "values.to(torch.float8_e5m2).to(torch.float8_e4m3fn)"),
    one("values alone", ORDINARY, RETURN, "    return values.to(torch.float8_e4m3fn)"),
    one("scales in FP32", ORDINARY, "scale.to(torch.float8_e8m0fnu)", "scale"),
    one("the inverse of the scale", ORDINARY, "scale.to(torch.float8_e8m0fnu)", "(1 / scale).to(torch.float8_e8m0fnu)"),
    one("changes x", ORDINARY, RETURN, "    x.clamp_(-1, 1)\n" + RETURN),
    one("no padding", SHAPE, PADDED, "x.float()", raises="invalid for input of size"),
    one("padded with ones", SHAPE, PADDED, "F.pad(x.float(), (0, -n % 32), value=1.0)"),
    Mutant("the short block comes first", MX, SHAPE, (("(0, -n % 32)", "(-n % 32, 0)"), ("[..., :n]", "[..., -n:]"))),
    one("padding is handed out", SHAPE, "[..., :n]", ""),
    one("two dimensions only", SHAPE, RESHAPE, "padded.reshape(len(x), -1, 32)", raises="shape"),
    one("blocks run on into the next row", SHAPE, PADDED,
        "F.pad(x.float().flatten(), (0, x.shape[:-1].numel() * (n + -n % 32) - x.numel())).reshape(*x.shape[:-1], -1)"),
    one("the standard's rule, which clips", END, EXPONENT, "exponent = exponent - 9"),
    one("448 counts as too large", END, "fraction > 7 / 8", "fraction >= 7 / 8"),
    one("log2 rounds", END, EXPONENT, "exponent = torch.ceil(torch.log2(amax / 448)).nan_to_num(0, 0, 0).int()"),
    one("difference of logarithms", END, EXPONENT,
        "exponent = torch.ceil(torch.log2(amax) - torch.log2(torch.tensor(448.0))).nan_to_num(0, 0, 0).int()"),
    one("480 is the end", END, "fraction > 7 / 8", "fraction > 15 / 16"),
    one("no lowest exponent", EXTREMES, "exponent.clamp(min=-127)", "exponent"),
    one("lowest exponent of FP32", EXTREMES, "exponent.clamp(min=-127)", "exponent.clamp(min=-126)"),
    one("amax / 448 becomes zero", EXTREMES, ZEROS, "torch.where(amax / 448 == 0, 1.0, scale)"),
    one("zeros have no case", EXTREMES, ZEROS, "scale"),
    one("zeros get the lowest scale", EXTREMES, ZEROS, "torch.where(amax == 0, 2.0**-127, scale)"),
    one("small blocks count as zeros", EXTREMES, ZEROS, "torch.where(amax < 1e-30, 1.0, scale)"),
    one("infinities have no case", EXTREMES, FINITE, "scale.nan_to_num(1.0)"),
    one("NaN only", EXTREMES, FINITE, "torch.where(amax.isnan(), torch.nan, scale)"),
    one("one bad block spoils all", EXTREMES, FINITE,
        "scale if bool(amax.isfinite().all()) else torch.full_like(scale, torch.nan)"),
    one("NaN overlooked", EXTREMES, AMAX, "amax = blocks.nan_to_num(0.0, torch.inf, -torch.inf).abs().amax(-1)"),
]  # fmt: skip

RIGHT = {
    "number by number": """
import math

import torch


def mx_quantise(x):
    rows = x.detach().to(torch.float64).reshape(-1, x.shape[-1]).tolist()
    values, scales = [], []
    for row in rows:
        for start in range(0, len(row), 32):
            block = row[start : start + 32]
            if not all(math.isfinite(number) for number in block):
                scale = math.nan
            elif not any(block):
                scale = 1.0
            else:
                scale = 2.0**-127
                while max(abs(number) for number in block) / scale > 448:
                    scale *= 2
            scales.append(scale)
            values += [number / scale for number in block]
    shape = (*x.shape[:-1], -(-x.shape[-1] // 32))
    values = torch.tensor(values, dtype=torch.float64).float().reshape(x.shape)
    return values.to(torch.float8_e4m3fn), torch.tensor(scales).float().reshape(shape).to(torch.float8_e8m0fnu)
""",
    "from the bits": """
import torch


def mx_quantise(x):
    pieces, patterns = [], []
    for piece in x.float().split(32, dim=-1):
        amax = piece.abs().max(dim=-1, keepdim=True).values
        bits = amax.contiguous().view(torch.int32)
        pattern = (bits >> 23) - 8 + ((bits & 0x7FFFFF) > 0x600000)  # 448 = (1 + 3/4) x 2^8
        pattern = pattern.clamp(min=0)
        pattern[amax == 0] = 127
        pattern[~torch.isfinite(amax)] = 255
        scale = pattern.to(torch.uint8).view(torch.float8_e8m0fnu)
        pieces.append((piece.double() / scale.double()).float().to(torch.float8_e4m3fn))
        patterns.append(scale.view(torch.uint8))
    values = torch.cat([piece.view(torch.uint8) for piece in pieces], -1).view(torch.float8_e4m3fn)
    return values, torch.cat(patterns, -1).view(torch.float8_e8m0fnu)
""",
    "looked up among all scales": """
import torch


def mx_quantise(x):
    scales = torch.exp2(torch.arange(-127, 128, dtype=torch.float64))
    full = torch.zeros(*x.shape[:-1], -(-x.shape[-1] // 32) * 32, dtype=torch.float64)
    full[..., : x.shape[-1]] = x
    blocks = full.unflatten(-1, (-1, 32))
    top = blocks.abs().max(-1).values
    pattern = torch.searchsorted(448 * scales, top.nan_to_num(0, 0, 0))  # the first that is large enough
    scale = scales[pattern].masked_fill(top == 0, 1.0)
    values = (blocks / scale.unsqueeze(-1)).flatten(-2).narrow(-1, 0, x.shape[-1])
    scale = scale.masked_fill(~top.isfinite(), torch.nan)
    return values.float().to(torch.float8_e4m3fn), scale.float().to(torch.float8_e8m0fnu)
""",
}

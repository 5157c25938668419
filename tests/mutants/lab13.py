"""Wrong and right answers for the practice task of lab 13."""

from . import Mutant

MX, BLOCKS = "lab13.mx", "quantises_block_by_block"
EXPONENT = "exponent = exponent - 9 + (fraction > 7 / 8).int()"
AMAX = "amax = blocks.abs().amax(-1)"
VALUES = "(blocks / scale[..., None]).clamp(-448, 448)"
RETURN = "    return values.to(torch.float8_e4m3fn), scale.to(torch.float8_e8m0fnu)"


def one(name: str, old: str, new: str) -> Mutant:
    return Mutant(name, MX, BLOCKS, ((old, new),))


MUTANTS = [
    one("the standard's rule, which clips", EXPONENT, "exponent = exponent - 9"),
    one("twice as large as needed", EXPONENT, "exponent = exponent - 8"),
    one("448 counts as too large", "fraction > 7 / 8", "fraction >= 7 / 8"),
    one("rounded to the nearest power", EXPONENT, "exponent = torch.log2(amax / 448).nan_to_num(0, 0, 0).round().int()"),
    one("log2 rounds", EXPONENT, "exponent = torch.ceil(torch.log2(amax / 448)).nan_to_num(0, 0, 0).int()"),
    one("difference of logarithms", EXPONENT,
        "exponent = torch.ceil(torch.log2(amax) - torch.log2(torch.tensor(448.0))).nan_to_num(0, 0, 0).int()"),
    one("the end of E5M2", EXPONENT, "exponent = exponent - 16 + (fraction > 7 / 8).int()"),
    one("256 is the end", EXPONENT, "exponent = exponent - 9 + (fraction > 1 / 2).int()"),
    one("no lowest exponent", "exponent.clamp(min=-127)", "exponent"),
    one("lowest exponent of FP32", "exponent.clamp(min=-127)", "exponent.clamp(min=-126)"),
    one("zeros have no case", "torch.where(amax == 0, 1.0, scale)", "scale"),
    one("zeros get the lowest scale", "torch.where(amax == 0, 1.0, scale)", "torch.where(amax == 0, 2.0**-127, scale)"),
    one("small blocks count as zeros", "torch.where(amax == 0, 1.0, scale)", "torch.where(amax < 1e-12, 1.0, scale)"),
    one("infinities have no case", "torch.where(amax.isfinite(), scale, torch.nan)", "scale.nan_to_num(1.0)"),
    one("NaN only", "torch.where(amax.isfinite(), scale, torch.nan)", "torch.where(amax.isnan(), torch.nan, scale)"),
    one("one bad block spoils all", "torch.where(amax.isfinite(), scale, torch.nan)",
        "scale if bool(amax.isfinite().all()) else torch.full_like(scale, torch.nan)"),
    one("NaN overlooked", AMAX, "amax = blocks.nan_to_num(0.0, torch.inf, -torch.inf).abs().amax(-1)"),
    one("negative numbers overlooked", AMAX, "amax = blocks.amax(-1).clamp(min=0)"),
    one("one scale a row", AMAX, "amax = blocks.abs().amax((-2, -1), keepdim=True)[..., 0].expand(blocks.shape[:-1])"),
    one("one scale a tensor", AMAX, "amax = blocks.abs().max().expand(blocks.shape[:-1])"),
    one("blocks of 16", ", -1, 32)", ", -1, 16)"),
    one("padded with ones", "F.pad(x.float(), (0, -n % 32))", "F.pad(x.float(), (0, -n % 32), value=1.0)"),
    Mutant("the short block comes first", MX, BLOCKS, (("(0, -n % 32)", "(-n % 32, 0)"), ("[..., :n]", "[..., -n:]"))),
    one("padding is handed out", "[..., :n]", ""),
    one("rounded to BF16 first", "F.pad(x.float(), (0, -n % 32))", "F.pad(x.bfloat16().float(), (0, -n % 32))"),
    one("values not divided", VALUES, "blocks.clamp(-448, 448)"),
    one("multiplied by the scale", VALUES, "(blocks * scale[..., None]).clamp(-448, 448)"),
    one("signs lost", VALUES, "(blocks / scale[..., None]).abs().clamp(-448, 448)"),
    one("values cut to whole numbers", VALUES, "(blocks / scale[..., None]).trunc().clamp(-448, 448)"),
    one("values in E5M2", "values.to(torch.float8_e4m3fn)", "values.to(torch.float8_e5m2)"),
    one("rounded twice", "values.to(torch.float8_e4m3fn)", "values.to(torch.float8_e5m2).to(torch.float8_e4m3fn)"),
    one("values alone", RETURN, "    return values.to(torch.float8_e4m3fn)"),
    one("scales in FP32", "scale.to(torch.float8_e8m0fnu)", "scale"),
    one("the inverse of the scale", "scale.to(torch.float8_e8m0fnu)", "(1 / scale).to(torch.float8_e8m0fnu)"),
    one("changes x", RETURN, "    x.clamp_(-1, 1)\n" + RETURN),
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
}

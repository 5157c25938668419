"""Wrong and right answers for the practice tasks of number formats."""

from . import one

GAP, ROUND, DICE, KAHAN = (f"number_formats.{part}" for part in ("gap", "round", "stochastic", "kahan"))
NORMAL, SUBNORMAL = "gap_of_normal_numbers", "gap_of_subnormal_numbers"
NEAREST, TIES, CARRIES, NEW = (
    "goes_to_the_nearest",
    "ties_go_to_even",
    "carries_into_the_exponent",
    "returns_a_new_tensor",
)
NEIGHBOUR, MEAN, AFRESH, BF16 = "goes_to_a_neighbor", "is_right_on_average", "draws_afresh", "returns_bf16"
WEIGHT, LOST, ARRIVE, TWO = (
    "weight_is_the_nearest", "lost_is_what_is_missing", "small_updates_arrive", "returns_two_bf16_tensors",
)  # fmt: skip

NOISE = "torch.randint(0, 2**16, x.shape, dtype=torch.int32, device=x.device)"
CUT = "((bits + noise) & ~0xFFFF).view(torch.float32).bfloat16()"
ROUNDED = "((bits + half + last) & -(1 << dropped)).view(torch.float32)"
MEANT = "weight.float() + lost.float() + update"
REST = "(meant - rounded.float()).bfloat16()"

MUTANTS = [
    # the gap
    one("frexp's exponent", GAP, NORMAL, "math.frexp(value)[1] - 1", "math.frexp(value)[1]"),
    one("relative gap", GAP, NORMAL, "return 2.0 ** (max(exponent, lowest) - fraction_bits)",
        "return 2.0 ** (max(exponent, lowest) - fraction_bits) / value"),
    one("epsilon everywhere", GAP, NORMAL, "max(exponent, lowest) - fraction_bits", "-fraction_bits"),
    one("epsilon times value", GAP, NORMAL, "2.0 ** (max(exponent, lowest) - fraction_bits)", "value * 2.0**-fraction_bits"),
    one("half a gap", GAP, NORMAL, "- fraction_bits)", "- fraction_bits - 1)"),
    one("BF16 whatever the format", GAP, NORMAL, "- fraction_bits)", "- 7)"),
    one("the last power of two left out", GAP, NORMAL, "max(exponent, lowest)",
        "min(max(exponent, lowest), 2 ** (exponent_bits - 1) - 2)"),
    one("the gap below", GAP, NORMAL, "math.frexp(value)", "math.frexp(math.nextafter(value, 0))"),
    one("a tensor", GAP, NORMAL, "return 2.0 ** (max(exponent, lowest) - fraction_bits)",
        "return torch.tensor(2.0 ** (max(exponent, lowest) - fraction_bits), dtype=torch.float64)"),
    one("a tensor, below as well", GAP, SUBNORMAL, "return 2.0 ** (max(exponent, lowest) - fraction_bits)",
        "return torch.tensor(2.0 ** (max(exponent, lowest) - fraction_bits), dtype=torch.float64)"),
    one("no subnormal numbers", GAP, SUBNORMAL, "max(exponent, lowest)", "exponent"),
    one("bias off by one", GAP, SUBNORMAL, "lowest = 1 - (", "lowest = 0 - ("),
    one("FP16's smallest for all", GAP, SUBNORMAL, "1 - (2 ** (exponent_bits - 1) - 1)", "-14"),
    # rounding by bits
    one("cuts off", ROUND, NEAREST, "bits + half + last", "bits"),
    one("always to the larger size", ROUND, NEAREST, "(1 << (dropped - 1)) - 1", "(1 << dropped) - 1"),
    one("BF16 whatever is asked for", ROUND, NEAREST, "23 - fraction_bits", "16"),
    one("one bit too many is dropped", ROUND, NEAREST, "23 - fraction_bits", "24 - fraction_bits"),
    one("positive numbers only", ROUND, NEAREST, ROUNDED, f"{ROUNDED}.clamp(min=0)"),
    one("rounds the value to so many places", ROUND, NEAREST, ROUNDED,
        "torch.round(x * 2.0**fraction_bits) / 2.0**fraction_bits"),
    one("tiny numbers lost", ROUND, NEAREST, ROUNDED, f"torch.where(x.abs() < 1e-30, 0.0, {ROUNDED})"),
    one("two dropped bits decide", ROUND, NEAREST, "bits + half + last",
        "(bits & -(1 << max(dropped - 2, 0))) + half + last"),
    one("ties away from zero", ROUND, TIES, "bits + half + last", "bits + half + 1"),
    one("ties towards zero", ROUND, TIES, "bits + half + last", "bits + half"),
    one("ties to odd", ROUND, TIES, "& 1  #", "& 1 ^ 1  #"),
    one("a full fraction goes down", ROUND, TIES, "last = (bits >> dropped) & 1",
        "last = (bits >> dropped) & ((((bits >> dropped) + 1) & ((1 << fraction_bits) - 1)) != 0).int()"),
    one("stays below the power of two", ROUND, CARRIES, ROUNDED,
        "torch.where((((bits + half + last) ^ bits) >> 23) != 0, (bits & -(1 << dropped)).view(torch.float32), "
        "((bits + half + last) & -(1 << dropped)).view(torch.float32))"),
    one("ends at the largest number", ROUND, CARRIES, ROUNDED, f"{ROUNDED}.nan_to_num()"),
    one("ends at the largest number, not for BF16", ROUND, CARRIES, ROUNDED,
        f"{ROUNDED} if fraction_bits in (7, 10) else {ROUNDED}.nan_to_num()"),
    one("works in its input, not for BF16", ROUND, NEW, "((bits + half + last) &",
        "((bits + half + last if fraction_bits == 7 else bits.add_(half + last)) &"),
    one("works in its input", ROUND, NEW, "((bits + half + last) &", "(bits.add_(half + last) &"),
    one("comes in BF16", ROUND, NEW, ROUNDED, f"{ROUNDED}.bfloat16()"),
    one("comes flat", ROUND, NEW, ROUNDED, f"{ROUNDED}.flatten()"),
    one("the bits themselves", ROUND, NEAREST, ROUNDED, ROUNDED.removesuffix(".view(torch.float32)")),
    one("the bits themselves, in the middle", ROUND, TIES, ROUNDED, ROUNDED.removesuffix(".view(torch.float32)")),
    one("the carry is masked off", ROUND, NEAREST, ROUNDED,
        "((bits & ~0x7FFFFF) | (((bits & 0x7FFFFF) + half + last) & 0x7FFFFF & -(1 << dropped))).view(torch.float32)"),
    # stochastic rounding
    one("noise of 64 bits", DICE, NEIGHBOUR, "dtype=torch.int32, ", ""),
    one("noise of 64 bits, on average", DICE, MEAN, "dtype=torch.int32, ", ""),
    one("noise of 64 bits, drawn afresh", DICE, AFRESH, "dtype=torch.int32, ", ""),
    one("comes with a dimension more", DICE, NEIGHBOUR, CUT, f"{CUT}.unsqueeze(-1)"),
    one("the mean outside of the gap", DICE, MEAN, "2**16, x.shape", "2**19, x.shape"),
    one("half the dice, drawn afresh", DICE, AFRESH, "2**16, x.shape", "2**15, x.shape"),
    one("the mask forgotten", DICE, AFRESH, "((bits + noise) & ~0xFFFF)", "(bits + noise)"),
    one("two thirds of the dice", DICE, AFRESH, "2**16, x.shape", "3 * 2**14, x.shape"),
    one("two gaps of noise", DICE, NEIGHBOUR, "2**16, x.shape", "2**17, x.shape"),
    one("what BF16 has may move", DICE, NEIGHBOUR, "torch.randint(0, 2**16", "torch.randint(2**10, 2**16 + 2**10"),
    one("rounds twice", DICE, NEIGHBOUR, "((bits + noise) & ~0xFFFF)", "(bits + noise)"),
    one("one value of noise too many", DICE, NEIGHBOUR, "2**16, x.shape", "2**16 + 1, x.shape",
        "one value too many"),
    one("noise rounded", DICE, NEIGHBOUR, NOISE, "(torch.rand(x.shape) * 65536).round().int()", "one value too many"),
    one("gaps of subnormal numbers by their logarithm", DICE, MEAN, CUT,
        "(torch.floor(x.double() / torch.exp2(torch.frexp(x)[1].double() - 8) + torch.rand(x.shape)) "
        "* torch.exp2(torch.frexp(x)[1].double() - 8)).bfloat16()", "It is subnormal"),
    one("subnormal numbers to the nearest", DICE, MEAN, CUT,
        "torch.where(x.abs() < 2**-126, x.bfloat16(), ((bits + noise) & ~0xFFFF).view(torch.float32).bfloat16())",
        "It is subnormal"),
    one("to the nearest", DICE, MEAN, CUT, "x.bfloat16()"),
    one("always down", DICE, MEAN, "(bits + noise)", "bits"),
    one("always up", DICE, MEAN, NOISE, "0xFFFF"),
    one("a fair coin", DICE, MEAN, NOISE, "torch.randint(0, 2, x.shape, dtype=torch.int32) * 0xFFFF"),
    one("half the dice", DICE, MEAN, "2**16, x.shape", "2**15, x.shape"),
    one("up and down exchanged", DICE, MEAN, "(bits + noise)", "((bits ^ 0xFFFF) + noise)"),
    one("one throw for all", DICE, AFRESH, NOISE, "torch.randint(0, 2**16, (1,), dtype=torch.int32)"),
    one("one throw for a row", DICE, AFRESH, NOISE,
        "torch.randint(0, 2**16, (*x.shape[:1], *[1] * (x.dim() - 1)), dtype=torch.int32)"),
    one("one throw for a column", DICE, AFRESH, NOISE, "torch.randint(0, 2**16, x.shape[1:], dtype=torch.int32)"),
    one("a table of noise", DICE, AFRESH, NOISE,
        "torch.randint(0, 2**16, (4096,), dtype=torch.int32).repeat(x.numel() // 4096 + 1)[: x.numel()].view(x.shape)",
        "element i and element i + 4096 go"),
    one("one throw for two neighbours", DICE, AFRESH, NOISE,
        "torch.randint(0, 2**16, (x.numel() // 2 + 1,), dtype=torch.int32)"
        ".repeat_interleave(2)[: x.numel()].view(x.shape)", "element i and element i + 1 go"),
    one("the second half mirrored", DICE, AFRESH, NOISE,
        "(lambda half: torch.cat([half, 0xFFFF - half])[: x.numel()].view(x.shape))"
        "(torch.randint(0, 2**16, (x.numel() // 2 + 1,), dtype=torch.int32))"),
    one("the last call's noise, moved on", DICE, AFRESH, NOISE,
        "stochastic_round.__dict__.setdefault(x.shape, torch.randint(0, 2**16, x.shape, dtype=torch.int32))\n"
        "    stochastic_round.__dict__[x.shape] = noise.flatten().roll(1).view(x.shape)", "of the next call"),
    one("seeded inside", DICE, AFRESH, "    noise = ", "    torch.manual_seed(0)\n    noise = "),
    one("stays in FP32", DICE, BF16, ".view(torch.float32).bfloat16()", ".view(torch.float32)"),
    one("rounds its input", DICE, BF16, f"    return {CUT}",
        "    return bits.add_(noise).bitwise_and_(~0xFFFF).view(torch.float32).bfloat16()"),
    one("changes its input", DICE, BF16, "    noise = ", "    bits += 1 << 16\n    noise = "),
    one("comes flat too", DICE, BF16, CUT, f"{CUT}.flatten()"),
    # compensated addition
    one("forgets what was lost", KAHAN, WEIGHT, MEANT, "weight.float() + update"),
    one("the lost part subtracted", KAHAN, WEIGHT, MEANT, "weight.float() - lost.float() + update"),
    one("the update subtracted", KAHAN, WEIGHT, MEANT, "weight.float() + lost.float() - update"),
    one("the update in BF16", KAHAN, WEIGHT, MEANT, "weight.float() + lost.float() + update.bfloat16()"),
    one("adds in BF16", KAHAN, WEIGHT, MEANT, "(weight + lost + update.bfloat16()).float()"),
    one("the first sum in BF16", KAHAN, WEIGHT, MEANT, "weight + lost + update"),
    one("the weight as it was", KAHAN, WEIGHT, "meant.bfloat16()", "weight.clone()"),
    one("no weight where there was none", KAHAN, WEIGHT, MEANT, f"({MEANT}).where(weight != 0, 0)"),
    one("rounds towards zero", KAHAN, WEIGHT, "meant.bfloat16()",
        "(meant.view(torch.int32) & ~0xFFFF).view(torch.float32).bfloat16()"),
    one("the rest cut off", KAHAN, LOST, REST,
        "((meant - rounded.float()).view(torch.int32) & ~0xFFFF).view(torch.float32).bfloat16()"),
    one("no rest of small weights", KAHAN, LOST, REST, "(meant - rounded.float()).where(meant.abs() > 1e-4, 0).bfloat16()"),
    one("the wrong sign", KAHAN, LOST, REST, "(rounded.float() - meant).bfloat16()"),
    one("the old rest once more", KAHAN, LOST, REST, "(meant - rounded.float() + lost.float()).bfloat16()"),
    one("the old rest left out", KAHAN, LOST, REST, "(weight.float() + update - rounded.float()).bfloat16()"),
    one("the old weight subtracted", KAHAN, LOST, REST, "(meant - weight.float()).bfloat16()"),
    one("nothing is kept", KAHAN, LOST, REST, "torch.zeros_like(lost)"),
    one("half of it is kept", KAHAN, LOST, REST, "(0.5 * (meant - rounded.float())).bfloat16()"),
    one("small rests are dropped", KAHAN, ARRIVE, REST,
        "(meant - rounded.float()).where((meant - rounded.float()).abs() > 2e-3 * rounded.float().abs(), 0).bfloat16()"),
    one("the rest in FP32", KAHAN, TWO, REST, "meant - rounded.float()"),
    one("the weight in FP32", KAHAN, TWO, "    return rounded,", "    return rounded.float(),"),
    one("writes into lost", KAHAN, TWO, REST, "lost.copy_(meant - rounded.float())"),
    one("writes into update", KAHAN, TWO, MEANT, "update.add_(weight.float() + lost.float())"),
    one("writes into weight", KAHAN, TWO, "meant.bfloat16()", "weight.copy_(meant)"),
    one("both flat", KAHAN, TWO, "    return rounded, (meant - rounded.float()).bfloat16()",
        "    return rounded.flatten(), (meant - rounded.float()).bfloat16().flatten()"),
]  # fmt: skip

RIGHT = {
    "logarithms and comparisons": """
import math

import torch


def gap(value, exponent_bits, fraction_bits):
    bias = 2 ** (exponent_bits - 1) - 1
    smallest_normal = 2.0 ** (1 - bias)
    if value < smallest_normal:
        return smallest_normal / 2**fraction_bits
    return 2.0 ** math.floor(math.log2(value) + 1e-12) / 2**fraction_bits if math.log2(value) % 1 == 0 else (
        2.0 ** (math.frexp(value)[1] - 1) / 2**fraction_bits)


def round_to(x, fraction_bits):
    fraction, exponent = torch.frexp(x.double())  # 1/2 <= |fraction| < 1
    whole = torch.round(fraction * 2 ** (fraction_bits + 1))  # torch.round takes ties to even
    return torch.ldexp(whole, exponent - fraction_bits - 1).float()


def stochastic_round(x):
    low = (x.view(torch.int32) & ~0xFFFF).view(torch.float32)
    high = ((x.view(torch.int32) & ~0xFFFF) + 0x10000).view(torch.float32)
    chance = (x.double() - low.double()) / (high.double() - low.double())
    return torch.where(torch.rand_like(x) < chance, high, low).to(torch.bfloat16)


def kahan_add(weight, lost, update):
    step = update + lost.to(torch.float32)
    new = (weight.to(torch.float32) + step).to(torch.bfloat16)
    return new, ((weight.float() - new.float()) + step).to(torch.bfloat16)
""",
    "loops and NumPy": """
import numpy as np
import torch


def gap(value, exponent_bits, fraction_bits):
    step = 2.0 ** (2 - 2 ** (exponent_bits - 1) - fraction_bits)  # among the subnormal numbers
    while value >= 2 * step * 2**fraction_bits:
        step *= 2
    return step


def round_to(x, fraction_bits):
    bits = x.numpy().view(np.uint32).astype(np.int64)
    unit = 1 << (23 - fraction_bits)
    below, rest = bits // unit, bits % unit
    up = (2 * rest > unit) | ((2 * rest == unit) & (below % 2 == 1))
    return torch.from_numpy(np.asarray(((below + up) * unit).astype(np.uint32)).view(np.float32).reshape(x.shape))


def stochastic_round(x):
    bits = x.clone().view(torch.int32)
    up = torch.randint(0, 65536, x.shape, device=x.device) < (bits & 0xFFFF)
    bits = (bits & -65536) + up.int() * 65536
    return bits.view(torch.float32).to(torch.bfloat16)


def kahan_add(weight, lost, update):
    meant = weight.to(torch.float64).add(lost).add(update).to(torch.float32)
    new = torch.empty_like(weight).copy_(meant)
    return new, torch.sub(meant, new).bfloat16()
""",
    "fractions and candidates": """
from fractions import Fraction

import torch


def gap(value, exponent_bits, fraction_bits):
    exact, e = Fraction(value), 2 - 2 ** (exponent_bits - 1)
    while Fraction(2) ** (e + 1) <= exact:
        e += 1
    return float(Fraction(2) ** (e - fraction_bits))


def round_to(x, fraction_bits):
    unit = 1 << (23 - fraction_bits)
    bits = x.clone().view(torch.int32)
    rest = bits & (unit - 1)
    nearer, farther = bits - rest, bits - rest + unit  # to zero
    even = torch.where((nearer // unit) % 2 == 0, nearer, farther)
    chosen = torch.where(2 * rest < unit, nearer, torch.where(2 * rest > unit, farther, even))
    return chosen.view(torch.float32)


def stochastic_round(x):
    unit = torch.exp2(torch.frexp(x)[1].double().clamp(min=-125) - 8)
    return (torch.floor(x.double() / unit + torch.rand(x.shape, dtype=torch.float64)) * unit).bfloat16()


class Compensated:
    def __init__(self, weight, lost):
        self.value = weight.double() + lost.double()

    def add(self, update):
        self.value = (self.value + update.double()).float()
        return self

    def parts(self):
        weight = self.value.bfloat16()
        return weight, torch.sub(self.value, weight.float()).bfloat16()


def kahan_add(weight, lost, update):
    return Compensated(weight, lost).add(update).parts()
""",
}

"""Wrong and right answers for the practice tasks of number formats."""

from . import one

GAP, KNOWS = "number_formats.gap", "knows_the_gap"
MOVES, SEES = "number_formats.moves", "sees_who_stands_still"
DICE, UNBIASED = "number_formats.stochastic", "rounds_without_bias"


MUTANTS = [
    one("no subnormal numbers", GAP, KNOWS, "max(exponent, lowest)", "exponent"),
    one("frexp's exponent", GAP, KNOWS, "math.frexp(value)[1] - 1", "math.frexp(value)[1]"),
    one("relative gap", GAP, KNOWS, "return 2.0 ** (max(exponent, lowest) - fraction_bits)",
        "return 2.0 ** (max(exponent, lowest) - fraction_bits) / value"),
    one("epsilon everywhere", GAP, KNOWS, "max(exponent, lowest) - fraction_bits", "-fraction_bits"),
    one("epsilon times value", GAP, KNOWS, "2.0 ** (max(exponent, lowest) - fraction_bits)", "value * 2.0**-fraction_bits"),
    one("bias off by one", GAP, KNOWS, "lowest = 1 - (", "lowest = 0 - ("),
    one("half a gap", GAP, KNOWS, "- fraction_bits)", "- fraction_bits - 1)"),
    one("subtracts in FP32", MOVES, SEES, ".to(weight.dtype)", ""),
    one("update rounded, sum not", MOVES, SEES, "(weight.float() - update).to(weight.dtype)",
        "weight.float() - update.to(weight.dtype).float()"),
    one("adds the update", MOVES, SEES, "weight.float() - update", "weight.float() + update"),
    one("changes its input", DICE, UNBIASED, "    bits = x.view(torch.int32)\n", "    bits = x.view(torch.int32)\n    bits += 1 << 16\n"),
    one("share that stands still", MOVES, SEES, "moved != weight", "moved == weight"),
    one("count in place of share", MOVES, SEES, ".mean()", ".sum()"),
    one("changes the weights", MOVES, SEES, "    moved = (weight.float() - update).to(weight.dtype)\n"
        "    return (moved != weight)", "    old = weight.clone()\n    weight -= update.to(weight.dtype)\n    return (old != weight)"),
    one("to the nearest", DICE, UNBIASED, "((bits + noise) & ~0xFFFF).view(torch.float32).bfloat16()", "x.bfloat16()"),
    one("always down", DICE, UNBIASED, "(bits + noise)", "bits"),
    one("always up", DICE, UNBIASED, "torch.randint(0, 2**16, x.shape, dtype=torch.int32, device=x.device)", "0xFFFF"),
    one("a fair coin", DICE, UNBIASED, "torch.randint(0, 2**16, x.shape, dtype=torch.int32, device=x.device)",
        "torch.randint(0, 2, x.shape, dtype=torch.int32) * 0xFFFF"),
    one("one throw for all", DICE, UNBIASED, "torch.randint(0, 2**16, x.shape, dtype=torch.int32, device=x.device)",
        "torch.randint(0, 2**16, (1,), dtype=torch.int32)"),
    one("half the dice", DICE, UNBIASED, "2**16, x.shape", "2**15, x.shape"),
    one("rounds twice", DICE, UNBIASED, "((bits + noise) & ~0xFFFF).view(torch.float32)", "(bits + noise).view(torch.float32)"),
    one("stays in FP32", DICE, UNBIASED, ".view(torch.float32).bfloat16()", ".view(torch.float32)"),
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
    return 2.0 ** math.floor(math.log2(value)) / 2**fraction_bits


def share_that_moves(weight, update):
    new = weight.clone().to(torch.float64) - update.to(torch.float64)
    changed = torch.ne(new.to(torch.float32).to(weight.dtype), weight)
    return float(changed.sum()) / weight.numel()


def stochastic_round(x):
    low = (x.view(torch.int32) & ~0xFFFF).view(torch.float32)
    high = ((x.view(torch.int32) & ~0xFFFF) + 0x10000).view(torch.float32)
    chance = (x.double() - low.double()) / (high.double() - low.double())
    return torch.where(torch.rand(x.shape, dtype=torch.float64) < chance, high, low).bfloat16()
""",
    "step by step": """
import torch


def gap(value, exponent_bits, fraction_bits):
    power = 1 - (2 ** (exponent_bits - 1) - 1)
    while 2.0 ** (power + 1) <= value:
        power += 1
    return 2.0**power / 2**fraction_bits


def share_that_moves(weight, update):
    stored = torch.sub(weight.float(), update).to(weight.dtype)
    return 1.0 - torch.eq(stored, weight).double().mean().item()


def stochastic_round(x):
    bits = x.clone().view(torch.int32)
    rest = bits & 0xFFFF
    up = torch.rand(x.shape) * 65536 < rest.float()
    return (bits - rest + up.int() * 65536).view(torch.float32).to(torch.bfloat16)
""",
}

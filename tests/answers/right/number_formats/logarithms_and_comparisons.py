# logarithms and comparisons

import math

import torch


def gap(value, exponent_bits, fraction_bits):
    bias = 2 ** (exponent_bits - 1) - 1
    smallest_normal = 2.0 ** (1 - bias)
    if value < smallest_normal:
        return smallest_normal / 2**fraction_bits
    return (
        2.0 ** math.floor(math.log2(value) + 1e-12) / 2**fraction_bits
        if math.log2(value) % 1 == 0
        else (2.0 ** (math.frexp(value)[1] - 1) / 2**fraction_bits)
    )


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

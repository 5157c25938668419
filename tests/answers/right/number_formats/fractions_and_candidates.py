# fractions and candidates

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

# loops and NumPy

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

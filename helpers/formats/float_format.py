"""Floating-point formats, bit by bit.

A floating-point number is (-1)^sign x significand x 2^exponent. How many bits go to the exponent decides the range; how
many to the fraction decides the precision. Everything here is read off the bits that PyTorch stores.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_INTEGERS = {4: torch.int32, 2: torch.int16, 1: torch.uint8}


@dataclass(frozen=True)
class FloatFormat:
    """One format: how its bits are divided.

    Attributes:
        exponent_bits, fraction_bits: besides them there is one bit for the sign.
    """

    name: str
    dtype: torch.dtype
    exponent_bits: int
    fraction_bits: int

    @property
    def bits(self) -> int:
        """Bits of a number."""
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def bias(self) -> int:
        """What is subtracted from the stored exponent."""
        return 2 ** (self.exponent_bits - 1) - 1

    def encode(self, value: float) -> int:
        """Return the bits that `value`, rounded to this format, is stored as."""
        stored = torch.tensor(value, dtype=torch.float64).to(self.dtype)
        return int(stored.view(_INTEGERS[self.dtype.itemsize]).item()) % 2**self.bits

    def decode(self, pattern: int) -> float:
        """Return the number that is stored as `pattern`."""
        signed = pattern - 2**self.bits if self.bits > 8 and pattern >= 2 ** (self.bits - 1) else pattern
        stored = torch.tensor(signed, dtype=_INTEGERS[self.dtype.itemsize])
        return stored.view(self.dtype).double().item()

    def fields(self, pattern: int) -> tuple[int, int, int]:
        """Split `pattern` into sign, stored exponent and fraction."""
        fraction = pattern % 2**self.fraction_bits
        exponent = (pattern >> self.fraction_bits) % 2**self.exponent_bits
        return pattern >> (self.bits - 1), exponent, fraction

    def gaps(self, values: Tensor) -> Tensor:
        """Return the distance from each of `values` (positive) to the next larger number."""
        exponents = (torch.frexp(values)[1] - 1).clamp(min=1 - self.bias)
        return torch.exp2(exponents.double() - self.fraction_bits)

    def all_values(self) -> Tensor:
        """Return every number of the format, in FP64, infinities and NaN included (formats of 16 bits and less)."""
        if self.bits > 16:
            raise ValueError(f"{self.name} has 2^{self.bits} numbers; that is too many to list.")
        patterns = torch.arange(2**self.bits, dtype=torch.int64)
        integer = _INTEGERS[self.dtype.itemsize]
        patterns = torch.where(patterns >= 2 ** (self.bits - 1), patterns - 2**self.bits, patterns)
        return patterns.to(torch.int8 if integer is torch.uint8 else integer).view(self.dtype).double()

    def describe(self, pattern: int) -> str:
        """Return how `pattern` is read: which power of two times which fraction."""
        sign, exponent, fraction = self.fields(pattern)
        value = self.decode(pattern)
        if not math.isfinite(value):
            return f"{value}"
        digits = 2**self.fraction_bits
        minus = "-" if sign else ""
        if exponent == 0:
            power = 1 - self.bias
            return f"{minus}(0 + {fraction}/{digits}) x 2^{power} = {value:.9g}" + (
                "" if fraction == 0 else ", subnormal"
            )
        return f"{minus}(1 + {fraction}/{digits}) x 2^{exponent - self.bias} = {value:.9g}"


FORMATS: dict[str, FloatFormat] = {
    f.name: f
    for f in (
        FloatFormat("FP32", torch.float32, 8, 23),
        FloatFormat("BF16", torch.bfloat16, 8, 7),
        FloatFormat("FP16", torch.float16, 5, 10),
        FloatFormat("E5M2", torch.float8_e5m2, 5, 2),
        FloatFormat("E4M3", torch.float8_e4m3fn, 4, 3),
    )
}

"""The roofline of a GPU of the catalog: its data sheet, times the shares of it that others have measured.

Nobody reaches the rates of a data sheet. How much of them is reached is data: `rates.json` is fitted to published
speeds of products, copies and training steps by `python -m tests.planner.calibrate`, and nothing in it is typed by
hand. A product needs some time to fill the chip and to drain it, so the rate grows with the size.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from .gpus import Gpu

if TYPE_CHECKING:  # its room imports PyTorch, which takes seconds
    from ...meter.roofline import Roofline

RATES = Path(__file__).with_name("rates.json")
SIDES = [2**i for i in range(6, 16)]  # of square products, from too small to fill a chip to large enough for any
_FLASH, _EFFICIENT = "aten._scaled_dot_product_flash_attention", "aten._scaled_dot_product_efficient_attention"


@dataclass(frozen=True)
class Rates:
    """What GPUs reach, fitted to what others have published.

    Attributes:
        products: FLOP/s of large square products, by GPU and dtype.
        attention: fused attention's share of the sheet's peak in 16 bits, by the first number of the compute
            capability; a newer one takes the last that is known.
        bandwidth: share of the sheet's bandwidth.
        latency: seconds in which an operation comes from the host to the chip, and fills and drains it.
        step: speed of products in a training step, as a multiple of `products`: in other shapes, beside other kernels.
        interval: how far published steps lay from forecasts, as (least, greatest) measured / predicted, each forecast
            made without the source of its own step.
    """

    products: Mapping[str, Mapping[str, float]]
    attention: Mapping[str, float]
    bandwidth: float
    latency: float
    step: float
    interval: tuple[float, float]


@cache
def fitted_rates() -> Rates:
    """Return the rates that `rates.json` holds."""
    values = json.loads(RATES.read_text(encoding="utf-8"))
    return Rates(**values | {"interval": tuple(values["interval"])})


def roofline_of(gpu: Gpu, rates: Rates | None = None) -> "Roofline":
    """Return the roofline of a GPU of the catalog, by `rates` or those of `rates.json`."""
    from ...meter.roofline import Roofline

    rates = rates or fitted_rates()
    products = {
        dtype: [(side, side, side, _rate(side, rates.step * rate, rates.latency)) for side in SIDES]
        for dtype, rate in rates.products[gpu.name].items()
    }
    attention = {"float16": _attention_rate(gpu, rates), "bfloat16": _attention_rate(gpu, rates) if gpu.bf16 else 0.0}
    one = {dtype: [(1, 1, 1, rate)] for dtype, rate in attention.items() if rate}
    kernels = {name + direction: one for name in (_FLASH, _EFFICIENT) for direction in ("", "_backward")}
    bandwidth = [(1.0, rates.bandwidth * gpu.bandwidth)]
    return Roofline(gpu.name, "cuda", products, bandwidth, rates.latency, kernels=kernels)


def _rate(side: int, largest: float, latency: float) -> float:
    """Return the FLOP/s of a square product: its FLOPs over the time at the largest rate and the latency."""
    flops = 2.0 * side**3
    return flops / (flops / largest + latency)


def _attention_rate(gpu: Gpu, rates: Rates) -> float:
    known = sorted(int(major) for major in rates.attention)
    major = max([m for m in known if gpu.capability and m <= gpu.capability[0]] or known[:1])
    return rates.attention[str(major)] * gpu.flops16

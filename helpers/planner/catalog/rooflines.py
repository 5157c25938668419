"""The roofline of a GPU of the catalog: its data sheet, times the shares of it that others have measured.

No GPU reaches the rates of its data sheet. How much of them is reached is data: the rates of matmuls stand in the
GPU's own file, those that all share in `rates.json`. Both are fitted to published speeds of matmuls, copies and
training steps by `python -m tests.planner.calibrate`, and nothing in them is typed by hand. A matmul needs some time to
fill the chip and to drain it, so the rate grows with the size; matmuls of a batch fill it together.
"""

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from .gpus import GPUS, Gpu
from .layout_rates import layout_rates

if TYPE_CHECKING:  # its room imports PyTorch, which takes seconds
    from ...meter.roofline import Roofline

RATES = Path(__file__).with_name("rates.json")
SIDES = [2**i for i in range(6, 16)]  # of square products, from too small to fill a chip to large enough for any
_FLASH, _EFFICIENT = "aten._scaled_dot_product_flash_attention", "aten._scaled_dot_product_efficient_attention"
# Generations whose attention kernels are another's: GeForce's Blackwell runs those of Ampere.
_KERNELS_OF = {"12": "8"}
_SIXTEEN = ("float16", "bfloat16")


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
        factors: how much longer operations take that have a trait of `meter/roofline/traits.py`.
        interval: how far published steps lay from forecasts, as (least, greatest) measured / predicted, each forecast
            made without the source of its own step.
    """

    products: Mapping[str, Mapping[str, float]]
    attention: Mapping[str, float]
    bandwidth: float
    latency: float
    step: float
    factors: Mapping[str, float]
    interval: tuple[float, float]


@cache
def fitted_rates() -> Rates:
    """Return the rates that `rates.json` and the files of the GPUs hold."""
    values = json.loads(RATES.read_text(encoding="utf-8"))
    products = {gpu.name: dict(gpu.rates) for gpu in GPUS.values() if gpu.rates}
    return Rates(products, **values | {"interval": tuple(values["interval"])})


def roofline_of(gpu: Gpu, rates: Rates | None = None) -> "Roofline":
    """Return the roofline of a GPU of the catalog, by `rates` or those of the files."""
    from ...meter.roofline import Roofline

    rates = rates or fitted_rates()
    reached = matmul_rates(gpu, rates)
    products = {
        dtype: [(side, side, side, _rate(side, rates.step * rate, rates.latency)) for side in SIDES]
        for dtype, rate in reached.items()
    }
    one = {dtype: [(1, 1, 1, attention_rate(gpu, dtype, rates))] for dtype in ("float32", *_SIXTEEN)}
    kernels = {name + direction: one for name in (_FLASH, _EFFICIENT) for direction in ("", "_backward")}
    bandwidth = [(1.0, rates.bandwidth * gpu.bandwidth)]
    return Roofline(gpu.name, "cuda", products, bandwidth, rates.latency, kernels=kernels, factors=rates.factors)


def _rate(side: int, largest: float, latency: float) -> float:
    """Return the FLOP/s of a square product: its FLOPs over the time at the largest rate and the latency."""
    flops = 2.0 * side**3
    return flops / (flops / largest + latency)


def matmul_rates(gpu: Gpu, rates: Rates, power: float | None = None) -> dict[str, float]:
    """Return the FLOP/s of large matmuls by dtype.

    Those that were measured; else those of the GPU that this one is `like`, by the ratios of their sheets and powers;
    else the share of the sheet that GPUs usually reach.

    Args:
        power: how far a chip follows its power, and not its sheet, where both differ from those of its kin: 0 to 1; the
            fitted share by default.
    """
    power = layout_rates().power if power is None else power
    measured = rates.products.get(gpu.name) or dict(gpu.rates)
    kin = GPUS.get(gpu.like)
    of_kin = matmul_rates(kin, rates) if kin else {}
    result = dict(measured)
    for dtype, peak in gpu.peaks.items():
        if dtype in measured:
            continue
        if kin and dtype in kin.peaks:
            result[dtype] = of_kin[dtype] * _between(peak / kin.peaks[dtype], gpu.watts / kin.watts, power)
        else:
            result[dtype] = peak * _usual_share(gpu, dtype, rates)
    if not gpu.bf16:  # emulated in FP32
        result.setdefault("bfloat16", result["float32"] * _emulated_share(rates))
    return result


def _between(sheet: float, power: float, share: float) -> float:
    """Return how much faster a chip is than its kin, between what its sheet says (0) and what its power lets it (1).

    A smaller chip than its kin cannot use more power than its sheet has units for.
    """
    return sheet if sheet < 1 and power > sheet else sheet ** (1 - share) * power**share


def _usual_share(gpu: Gpu, dtype: str, rates: Rates) -> float:
    """Return the median share of their sheet that measured GPUs reach: those of its capability, else all."""
    shares: dict[bool, list[float]] = {True: [], False: []}
    for name, mine in rates.products.items():
        peak, rate = GPUS[name].peaks.get(dtype), mine.get(dtype)
        if peak and rate:
            shares[GPUS[name].capability == gpu.capability].append(rate / peak)
    return statistics.median(shares[True] or shares[False])


def _emulated_share(rates: Rates) -> float:
    old = [mine for name, mine in rates.products.items() if not GPUS[name].bf16]
    return statistics.median(mine["bfloat16"] / mine["float32"] for mine in old)


def attention_rate(gpu: Gpu, dtype: str, rates: Rates) -> float:
    """Return the FLOP/s of fused attention: a share of the sheet's peak; in an emulated dtype, of its matmuls' rate."""
    peak = gpu.peaks.get(dtype)
    return _attention_share(gpu, dtype, rates) * (peak or matmul_rates(gpu, rates)[dtype])


def _attention_share(gpu: Gpu, dtype: str, rates: Rates) -> float:
    """Return what the GPU's file says, or the share of its generation; of an unknown one, that of the last before it.

    In 32 bits it is Ampere's: newer generations have no matmuls of another kind there that could be left idle.
    """
    known = {int(generation): share for generation, share in rates.attention.items()}
    if dtype not in _SIXTEEN:
        return known[min(known)]
    generation = _KERNELS_OF.get(gpu.generation, gpu.generation)
    if gpu.attention_share or not generation.isdecimal():
        return gpu.attention_share or min(known.values())
    return known[max([each for each in known if each <= int(generation)] or [min(known)])]

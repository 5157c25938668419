"""How long one kernel takes on a GPU that trains among others.

A product is cut into tiles, and each multiprocessor works on one tile at a time: 130 tiles on 108 multiprocessors take
as long as 216 would (NVIDIA, Matrix Multiplication Background User's Guide, "wave quantization"). A tile's loop fills a
pipeline before its first step and writes its result after the last one, so short loops are slow (the same guide, on K).
Everything else reads and writes. A kernel needs some microseconds besides, to begin and to end.

Busy chips run as fast as their power lets them: kin of a GPU with another limit have other clocks.
"""

import math
from functools import cached_property

from ...meter.work import Work
from ..catalog.gpus import GPUS, Gpu
from ..catalog.layout_rates import LayoutRates
from ..catalog.rooflines import fitted_rates
from .layout import Layout

# Of the data centre's GPUs, by compute capability: NVIDIA's white papers on A100, H100 and Blackwell.
MULTIPROCESSORS = {(8, 0): 108, (9, 0): 132, (10, 0): 148, (10, 3): 148}
# Of chips that differ from their kin: NVIDIA's data sheets of DGX H100 and B200, GB200 and GB300 NVL72 and HGX B300;
# torchtitan's authors of their H100.
WATTS = {
    "h100-80gb": 700,
    "h100-96gb": 500,
    "b200-192gb": 1000,
    "gb200-186gb": 1200,
    "b300-288gb": 1100,
    "gb300-288gb": 1400,
}
_WIDTHS = {"float32": 4, "float8_e4m3fn": 1}
_TILES = ((256, 128), (128, 256), (128, 128))  # the usual ones of 16-bit products; the best fitting is taken
_SIXTEEN = ("float16", "bfloat16")
EIGHT = "float8_e4m3fn"
# Bytes read and written for each number of an 8-bit product's operands: from 16 bits into 8, and once more to look for
# the largest, where the kernel before does not do that.
_CAST, _SCALED = 3, 5


class Chip:
    """A GPU at the rates that training reaches on it.

    Args:
        gpu: of the catalog, or kin to one.
        rates: what clusters reach.
        layout: which kernels run: see its `attention` and `compile`.
    """

    def __init__(self, gpu: Gpu, rates: LayoutRates, layout: Layout) -> None:
        self._gpu, self._rates = gpu, rates
        self._casts = _CAST if layout.engine == "megatron" else _SCALED
        self._passing = (rates.fused if layout.compile else rates.eager) * fitted_rates().bandwidth * gpu.bandwidth
        self._kin = GPUS.get(gpu.name) or next(k for k in GPUS.values() if k.capability == gpu.capability)
        self._major = str((self._kin.capability or (8, 0))[0])
        # FlashAttention-2 does as well as any on Ampere, and half as well as the next one on Hopper (arXiv 2407.08608).
        self._slower = 2.0 if layout.attention == "fused-2023" and int(self._major) > 8 else 1.0
        self._units = MULTIPROCESSORS.get(gpu.capability or (0, 0), 0)
        self._power = WATTS.get(gpu.name, 1.0) / WATTS.get(self._kin.name, 1.0) if gpu.name != self._kin.name else 1.0

    def seconds(self, work: Work) -> tuple[float, str]:
        """Return how long an operation takes, and what bounds it: "compute" or "memory"."""
        passing, casting, multiplying = self.passing_seconds(work.bytes), 0.0, 0.0
        if work.dtype == EIGHT and work.flops:
            casting = self.passing_seconds(self._casts * (work.shape[-3] + work.shape[-2]) * work.shape[-1])
        if work.kind == "attention":
            multiplying = self.attention_seconds(work.flops, work.dtype)
        elif work.flops:
            multiplying = self.product_seconds(work.shape, work.dtype)
        bound = "compute" if multiplying > passing else "memory"
        return max(multiplying, passing) + casting + self._rates.kernel, bound

    def product_seconds(self, shape: tuple[int, ...], dtype: str) -> float:
        """Return the seconds of a product by its FLOPs. shape: (m, n, k), or (b, m, n, k) for b of them."""
        longer = 1.0 + self._rates.depth / (shape[-1] * _WIDTHS.get(dtype, 2))
        return 2.0 * math.prod(shape) * longer / (self.product_rate(dtype) * self._filled(shape))

    def product_rate(self, dtype: str) -> float:
        """Return the FLOP/s of products that fill the chip. A dtype without units for it counts as "float32"."""
        return self._products.get(dtype) or self._products["float32"]

    def attention_seconds(self, flops: float, dtype: str) -> float:
        """Return the seconds of fused attention."""
        return flops * self._slower / (self._attention if dtype in _SIXTEEN else self.product_rate(dtype))

    def passing_seconds(self, nbytes: float) -> float:
        """Return the seconds of reading and writing so many bytes."""
        return nbytes / self._passing

    def _filled(self, shape: tuple[int, ...]) -> float:
        """Return the share of the chip's time in which it works on tiles that are needed."""
        if not self._units or len(shape) < 3:
            return 1.0
        m, n = shape[-3:-1]
        best = 0.0
        for high, wide in _TILES:
            tiles = math.ceil(m / high) * math.ceil(n / wide) * math.prod(shape[:-3])
            waves = math.ceil(tiles / self._units)
            best = max(best, math.prod(shape[:-3]) * m * n / (high * wide) / (waves * self._units))
        return best

    @cached_property
    def _products(self) -> dict[str, float]:
        """FLOP/s of large products by dtype: those of the catalog's kin, by the ratio of the sheets' peaks."""
        return {
            dtype: rate
            * _between(self._gpu.peaks[dtype] / self._kin.peaks[dtype], self._power, self._rates.power)
            * self._rates.products.get(f"{self._major} {dtype}", 1.0)
            for dtype, rate in fitted_rates().products[self._kin.name].items()
            if dtype in self._kin.peaks
        }

    @cached_property
    def _attention(self) -> float:
        known = fitted_rates().attention
        major = max((m for m in known if int(m) <= int(self._major)), key=int, default=min(known, key=int))
        return known[major] * self._gpu.flops16 * self._rates.attention.get(self._major, 1.0)


def _between(sheet: float, power: float, share: float) -> float:
    """Return how much faster a chip is than its kin, between what its sheet says (0) and what its power lets it (1)."""
    return sheet ** (1 - share) * power**share

"""How long one kernel takes on a GPU that trains among others.

A product is cut into tiles, and each multiprocessor works on one tile at a time: 130 tiles on 108 multiprocessors take
as long as 216 would (NVIDIA, Matrix Multiplication Background User's Guide, "wave quantization"). A tile's loop fills a
pipeline before its first step and writes its result after the last one, so short loops are slow (the same guide, on K).
Everything else reads and writes. A kernel needs some microseconds besides, to begin and to end.

Busy chips run as fast as their power lets them: kin of a GPU with another limit have other clocks. A short kernel that
was measured alone ended before the power limit took effect. In a step, it is not faster than long kernels are.
"""

import math
from functools import cached_property

from ...meter.work import Work
from ..catalog.gpus import Gpu
from ..catalog.layout_rates import LayoutRates
from ..catalog.rooflines import attention_rate, fitted_rates, matmul_rates
from .layout import Layout

# Compute capabilities whose matmuls come in these tiles: those of the data centre's GPUs.
_TILED = ((8, 0), (9, 0), (10, 0), (10, 3))
_WIDTHS = {"float32": 4, "float8_e4m3fn": 1, "float4_e2m1fn_x2": 0.5}
_TILES = ((256, 128), (128, 256), (128, 128))  # the usual ones of 16-bit products; the best fitting is taken
_SIXTEEN = ("float16", "bfloat16")
EIGHT, FOUR = "float8_e4m3fn", "float4_e2m1fn_x2"
# Bytes read and written for each number of an 8-bit product's operands. Transformer Engine reads 16 bits and writes 8
# twice, by rows and by columns, or the second alone where a norm has written the first; others read 16 bits and write
# 8, and read once more to look for the largest.
_CAST, _TURNED, _SCALED = 4, 2, 5
# The same in 4 bits: 16 bits are read to look for the largest, then again to write half a byte by rows and by columns,
# with a scale of one byte for each 16 numbers.
_FOURTHS = 2 + 2 + 2 * (0.5 + 1 / 16)
# cuDNN's fused attention, which Transformer Engine takes, over FlashAttention-2 on Hopper: figures 5 and 6 of arXiv
# 2407.08608, causal, heads of 128, 8k tokens.
_CUDNN = 1.5
# A kernel among others over the same kernel alone, where the user's own table has its very shape. Where it has not,
# `in_step` also counts what other shapes lose. SimuMax's two machines meet their steps at 0.94 (B200) and 0.99 (A100).
_AMONG_OTHERS = 0.95


def takes_cudnn(layout: Layout, gpu: Gpu) -> bool:
    """Return whether attention runs at the speed of cuDNN's kernel: Megatron's on Hopper, if an older is not named."""
    hopper = gpu.vendor == "nvidia" and gpu.generation == "9"
    return hopper and layout.engine == "megatron" and layout.attention in ("fused", "cudnn")


class Chip:
    """A GPU at the rates that training reaches on it.

    Args:
        gpu: of the catalog, or kin to one.
        rates: what clusters reach.
        layout: which kernels run: see its `attention` and `compile`.
        casts_weights: whether 8-bit matmuls pay for the cast of weights, which a step does once.
    """

    def __init__(self, gpu: Gpu, rates: LayoutRates, layout: Layout, casts_weights: bool = True) -> None:
        self._gpu, self._rates = gpu, rates
        self._measured = rates.measured
        self._pace = rates.measured.pace if rates.measured else 1.0
        self._kernel = (rates.measured and rates.measured.kernel) or rates.kernel
        self._engine, self._keeps_casts = layout.engine, layout.engine == "megatron"
        self._hidden, self.vocabulary = layout.arch.hidden, -(-layout.arch.vocab // layout.tensor)
        self._of_weights = 1 / layout.micro_batches if casts_weights and not layout.fp8_params else 0.0
        self._passing = (rates.fused if layout.compile else rates.eager) * fitted_rates().bandwidth * gpu.bandwidth
        if rates.measured and rates.measured.memory:
            self._passing = rates.measured.memory * (1.0 if layout.compile else rates.eager / rates.fused)
        # FlashAttention-2 does as well as any on Ampere, and half as well as the next one on Hopper (arXiv 2407.08608).
        newer = gpu.vendor == "nvidia" and int(gpu.generation) > 8
        self._slower = 2.0 if layout.attention == "fused-2023" and newer else 1.0
        if takes_cudnn(layout, gpu):
            self._slower /= _CUDNN
        self._units = gpu.multiprocessors if gpu.capability in _TILED and gpu.vendor == "nvidia" else 0

    def seconds(self, work: Work) -> tuple[float, str]:
        """Return how long an operation takes, and what bounds it: "compute" or "memory"."""
        passing, casting, multiplying = self.passing_seconds(work.bytes), 0.0, 0.0
        if work.dtype in (EIGHT, FOUR) and work.flops:
            casting = self.passing_seconds(self._cast_bytes(work))
        if work.kind == "attention":
            multiplying = self._measured_attention(work) or self.attention_seconds(work.flops, work.dtype)
        elif work.flops:
            multiplying = self._measured_product(work) or self.product_seconds(work.shape, work.dtype)
        bound = "compute" if multiplying > passing else "memory"
        kernel = self._kernel if multiplying == 0 else self._rates.kernel
        return self._pace * (max(multiplying, passing) + casting + kernel), bound

    def _cast_bytes(self, work: Work) -> float:
        """Return the bytes that casts for an 8-bit matmul read and write: of both operands, where none is kept.

        Transformer Engine casts a layer's input once, for its output and its weight's gradient, the output's gradient
        once, and weights in the first micro-batch of a step (`is_first_microbatch`), unless they are kept in 8 bits.
        An input that a norm has made leaves it in 8 bits (`LayerNormLinear`), and is only turned.
        """
        m, n, k = work.shape[-3:]
        if work.dtype == FOUR:
            return 0.0 if work.layout == "tn" else _FOURTHS * (m * k + (work.layout == "nt") * self._of_weights * n * k)
        if not self._keeps_casts:
            return _SCALED * (m + n) * k
        if work.layout == "tn":  # of the weight: both operands were cast for the other two
            return 0.0
        if work.layout != "nt":
            return _CAST * m * k
        return (_TURNED if k == self._hidden else _CAST) * m * k + self._of_weights * _CAST * n * k

    def _measured_product(self, work: Work) -> float:
        """Return the seconds of a product by the user's own table; 0 where that does not say."""
        if self._measured is None or len(work.shape) < 3:
            return 0.0
        rate = self._measured.matmul_rate(work, self.catalog_rate)
        if not rate:
            return 0.0
        known = any((each.shape, each.dtype) == (work.shape, work.dtype) for each in self._measured.matmuls)
        return 2.0 * math.prod(work.shape) / self._among_others(rate, known, work.dtype)

    def _measured_attention(self, work: Work) -> float:
        if self._measured is None or work.dtype not in _SIXTEEN:
            return 0.0
        rate = self._measured.attention_rate(work.shape, work.name.endswith("_backward"))
        return work.flops / self._among_others(rate, True, work.dtype) if rate else 0.0

    def _among_others(self, rate: float, known: bool, dtype: str) -> float:
        """Return the FLOP/s in a step of what has `rate` alone; `known`: by a measurement of this very shape."""
        most = self._measured.sustained(dtype) if self._measured else math.inf
        return (_AMONG_OTHERS if known else self._rates.in_step) * min(rate, most)

    def catalog_rate(self, shape: tuple[int, ...], dtype: str) -> float:
        """Return the forecast's FLOP/s of a matmul alone, as a table has it."""
        return 2.0 * math.prod(shape) / self.product_seconds(shape, dtype) / self._rates.in_step

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
        """FLOP/s of large products by dtype, as training steps reach them.

        No run in 4 bits is among those that rates were fitted to: such products reach the share of their sheet that
        those in 8 bits reach.
        """
        reached = self._of_wider
        if self._gpu.flops4 and EIGHT in reached:
            reached[FOUR] = reached[EIGHT] * self._gpu.flops4 / self._gpu.flops8
        return reached

    @property
    def _of_wider(self) -> dict[str, float]:
        return {
            dtype: rate * self._rates.share(f"{self._gpu.generation} {dtype}", self._engine)
            for dtype, rate in matmul_rates(self._gpu, fitted_rates(), self._rates.power).items()
            if dtype in self._gpu.peaks
        }

    @cached_property
    def _attention(self) -> float:
        share = self._rates.attention.get(self._gpu.generation, 1.0)
        return share * attention_rate(self._gpu, "float16", fitted_rates())

"""What links and many-GPU steps reach of their data sheets, fitted to published runs.

`layout_rates.json` is written by `python -m tests.planner.calibrate_layouts`; nothing in it is typed by hand.
"""

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from .gpus import GPUS, Gpu
from .rooflines import fitted_rates, roofline_of

if TYPE_CHECKING:
    from ...meter.roofline import Roofline

LAYOUT_RATES = Path(__file__).with_name("layout_rates.json")


@dataclass(frozen=True)
class LayoutRates:
    """What clusters reach.

    Attributes:
        inside, outside: share of a link's bandwidth, within a node and between nodes.
        start, hop: seconds before a collective's first byte, and for each doubling of the nodes.
        launch: seconds in which the host launches an operation.
        kernel: seconds that even the smallest operation takes on the chip.
        interval: how far published steps lay from predictions, as (least, greatest) measured / predicted.
        products: speed of products in such steps, as a multiple of what `rates.json` says, by the first number of the
            GPU's compute capability and dtype: "9 bfloat16".
    """

    inside: float
    outside: float
    start: float
    hop: float
    launch: float
    kernel: float
    interval: tuple[float, float]
    products: dict[str, float]

    def __hash__(self) -> int:
        return hash(
            (self.inside, self.outside, self.start, self.hop, self.launch, self.kernel, *sorted(self.products.items()))
        )


@cache
def layout_rates() -> LayoutRates:
    """Return the rates that `layout_rates.json` holds."""
    values = json.loads(LAYOUT_RATES.read_text(encoding="utf-8"))
    return LayoutRates(**values | {"interval": tuple(values["interval"])})


@cache
def roofline_in_a_cluster(gpu: Gpu, rates: LayoutRates) -> "Roofline":
    """Return the roofline of a GPU at work among others.

    One that `rates.json` does not know takes the shares of its sheet that its next of kin reaches.
    """
    single = fitted_rates()
    kin = GPUS.get(gpu.name) or next(known for known in GPUS.values() if known.capability == gpu.capability)
    reached = {
        dtype: rate * gpu.peaks[dtype] / kin.peaks[dtype] * rates.products.get(f"{gpu.capability[0]} {dtype}", 1.0)
        for dtype, rate in single.products[kin.name].items()
        if dtype in kin.peaks
    }
    return roofline_of(gpu, replace(single, products={gpu.name: reached}))

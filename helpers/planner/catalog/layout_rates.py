"""What links and many-GPU steps reach of their data sheets, fitted to published runs.

`layout_rates.json` is written by `python -m tests.planner.calibrate_layouts`; nothing in it is typed by hand.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

LAYOUT_RATES = Path(__file__).with_name("layout_rates.json")


@dataclass(frozen=True)
class LayoutRates:
    """What clusters reach.

    Attributes:
        inside, outside: share of a link's bandwidth, within a node and between nodes.
        start, hop: seconds before a collective's first byte, and for each doubling of the nodes.
        launch: seconds in which the host launches an operation.
        interval: how far published steps lay from predictions, as (least, greatest) measured / predicted.
        products: speed of products in such steps, as a multiple of that in `rates.json`, by precision.
    """

    inside: float
    outside: float
    start: float
    hop: float
    launch: float
    interval: tuple[float, float]
    products: dict[str, float]


@cache
def layout_rates() -> LayoutRates:
    """Return the rates that `layout_rates.json` holds."""
    values = json.loads(LAYOUT_RATES.read_text(encoding="utf-8"))
    return LayoutRates(**values | {"interval": tuple(values["interval"])})

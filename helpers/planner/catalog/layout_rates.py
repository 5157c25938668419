"""What links and many-GPU steps reach of their data sheets, fitted to published runs.

`layout_rates.json` is written by `python -m tests.planner.calibrate_layouts`; nothing in it is typed by hand.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # its room imports PyTorch, which takes seconds
    from ..rates.measured import Measured

LAYOUT_RATES = Path(__file__).with_name("layout_rates.json")


@dataclass(frozen=True)
class LayoutRates:
    """What clusters reach.

    Attributes:
        inside, outside: share of a link's bandwidth, within a node and between nodes.
        start, hop: seconds before the first byte of what is sent directly, and for each doubling of the nodes; rings
            and trees have NCCL's own (`layout/collective_seconds.py`).
        launch: seconds in which the host launches an operation.
        kernel: seconds that an operation takes on the chip besides its FLOPs and bytes, to begin and to end.
        fused, eager: bandwidth of chains of operations that one kernel does, and of one kernel an operation, as a
            multiple of what copies reach.
        depth: bytes of a row of its operands that a product could go through while it begins and ends.
        power: how far a chip follows its power, and not its sheet, where both differ from those of its kin: 0 to 1.
        interval, interval_experts: how far published steps of dense models and of mixtures of experts lay from
            predictions, as (least, greatest) measured / predicted: nine of ten, of sources that were left out.
        products: speed of products in such steps, as a multiple of what `rates.json` says, by the first number of the
            GPU's compute capability and dtype, "9 bfloat16"; with an engine's name behind, of that engine alone.
        attention: the same of fused attention, by the first number of the compute capability: "9".
        measured: tables of the user's own machine, which go before all of these.
    """

    inside: float
    outside: float
    start: float
    hop: float
    launch: float
    kernel: float
    fused: float
    eager: float
    depth: float
    power: float
    interval: tuple[float, float]
    interval_experts: tuple[float, float]
    products: dict[str, float]
    attention: dict[str, float]
    measured: "Measured | None" = None

    def share(self, name: str, engine: str) -> float:
        """Return the speed of matmuls in a step; `name`: generation and dtype."""
        return self.products.get(f"{name} {engine}") or self.products.get(name, 1.0)

    def interval_of(self, experts: int) -> tuple[float, float]:
        """Return (least, greatest) measured / predicted of a model with so many experts a block; 0: a dense one."""
        return self.interval_experts if experts else self.interval

    @property
    def in_step(self) -> float:
        """What matmuls reach in a step of what they reach alone: as in the generation that loses least, in 16 bits."""
        shares = {name.split()[0]: share for name, share in self.products.items() if name.endswith("float16")}
        return max(shares.values())

    @property
    def launch_seconds(self) -> float:
        """Seconds in which the host launches an operation, by the user's own machine where that was measured."""
        own = self.measured
        return self.launch if own is None else own.pace * (own.launch or self.launch)

    def __hash__(self) -> int:
        links = (self.inside, self.outside, self.start, self.hop)
        numbers = (*links, self.launch, self.kernel, self.fused, self.eager, self.depth, self.power)
        return hash((numbers, id(self.measured), *sorted(self.products.items()), *sorted(self.attention.items())))


@cache
def layout_rates() -> LayoutRates:
    """Return the rates that `layout_rates.json` holds."""
    values = json.loads(LAYOUT_RATES.read_text(encoding="utf-8"))
    return LayoutRates(**values | {name: tuple(values[name]) for name in ("interval", "interval_experts")})

"""Memory against the tokens of a micro-batch: a straight line through two plans, and the room of a GPU."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.colors import COLORS
from ..core.units import GiB
from .catalog.gpus import find_gpu
from .plan import Plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_END = 32768  # tokens, where the picture ends
_FREE = 0.9  # a rule of thumb: leave a tenth of the GPU


@dataclass(frozen=True)
class TokensLine:
    """Two plans of one recipe that differ in their tokens alone; between them and beyond, bytes grow with tokens.

    Attributes:
        short, long: the plans, of micro-batches of one sequence.
    """

    short: Plan
    long: Plan

    def at(self, tokens: float, reserved: bool = False) -> float:
        """Return the bytes at the peak, allocated or (at most) reserved, with so many tokens in a micro-batch."""
        least, most = (p.reserved_bytes[1] if reserved else p.peak_allocated_bytes for p in (self.short, self.long))
        begin, end = self.short.recipe.seq, self.long.recipe.seq
        return least + (tokens - begin) * (most - least) / (end - begin)

    def computes_on(self, gpu: str) -> bool:
        """Say whether the GPU has the 16-bit format that the recipe computes in."""
        return find_gpu(gpu).bf16 or not self.short.recipe.precision.startswith("bf16")

    def fit(self, gpu: str) -> tuple[int, int]:
        """Return how many tokens fit: with room for all that may be reserved, and with a tenth of the GPU left free."""
        room, sizes = find_gpu(gpu).total, []
        for reserved, share in ((True, 1.0), (False, _FREE)):
            kept = self.at(0, reserved)
            sizes.append(max(0, int((share * room - kept) / (self.at(1, reserved) - kept))))
        return sizes[0], sizes[1]

    def figure(self, gpu: str, tokens: int, title: str) -> "Figure":
        """Draw both lines, a mark at `tokens` on each, and the size of the GPU."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 3), layout="constrained")
        axes = figure.add_subplot()
        for reserved, style, mark, name in ((False, "-", "o", "allocated"), (True, "--", "s", "reserved, at most")):
            here = self.at(tokens, reserved) / GiB
            axes.plot((0, _END), [self.at(t, reserved) / GiB for t in (0, _END)], style, color=COLORS[0])
            axes.plot(tokens, here, mark, color=COLORS[1], label=f"{here:.1f} GiB {name}")
        axes.axhline(find_gpu(gpu).total / GiB, color="black", ls=":", label=gpu)
        axes.set(title=title, xlabel="tokens in a micro-batch", ylabel="GiB", ylim=(0, None))
        figure.legend(loc="outside right upper", frameon=False)
        return figure

"""What was said, and what this run measured.

Articles say "mixed precision halves the memory". A lab measures it and writes both down here, with the
model and the device, and the verdict follows from the two: nobody types it. A claim may hold for one model
and fail for another; each gets a row.
"""

import html
from dataclasses import dataclass, field

from .device import device_name, pick_device


@dataclass(frozen=True)
class Measurement:
    """One claim, measured once."""

    claim: str
    said: str
    subject: str
    measured: float
    unit: str
    low: float
    high: float
    device: str

    @property
    def held(self) -> bool:
        """Whether the measured figure lies where the claim puts it."""
        return self.low <= self.measured <= self.high

    def cells(self) -> tuple[str, ...]:
        """Return the row as it is printed."""
        figure = f"{self.measured:.3g} {self.unit}"
        return self.claim, self.said, self.subject, figure, "held" if self.held else "did not hold"


@dataclass(repr=False)
class Claims:
    """The claims a lab has put to the test, as a table that prints itself."""

    rows: list[Measurement] = field(default_factory=list)

    def record(self, claim: str, said: str, subject: str, measured: float, unit: str, low: float, high: float) -> None:
        """Add one measured claim.

        Args:
            claim: its number in the syllabus, e.g. "C7".
            said: the claim in a few words.
            subject: what it was measured on: model, batch, number format.
            measured: the figure of this run, in `unit`.
            low, high: the claim counts as held when `low <= measured <= high` (`math.inf` for "at least").
        """
        device = device_name(pick_device())
        self.rows.append(Measurement(claim, said, subject, measured, unit, low, high, device))

    _HEADER = ("claim", "said", "measured on", "measured", "verdict")

    def __str__(self) -> str:
        table = [self._HEADER, *(row.cells() for row in self.rows)]
        widths = [max(len(line[i]) for line in table) for i in range(len(self._HEADER))]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in table]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from .progress import remember  # which reads claims, too

        remember(self.rows)

        def line(cells: tuple[str, ...], tag: str) -> str:
            columns = "".join(f"<{tag} style='text-align:left'>{html.escape(c)}</{tag}>" for c in cells)
            return f"<tr>{columns}</tr>"

        body = "".join(line(row.cells(), "td") for row in self.rows)
        return f"<table>{line(self._HEADER, 'th')}{body}</table>"

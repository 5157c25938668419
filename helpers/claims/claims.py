"""Claims of others, and what this run measured.

Articles say "mixed precision halves the memory". A lab measures it and records both here, with the model and the
device. The verdict follows from the two; nobody types it. A claim may hold for one model and fail for another, so each
gets a row.
"""

import html
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..core.device import device_name, pick_device
from .hardware import verdict
from .measurement import Measurement
from .progress import remember_claims
from .receipt import receipts_elsewhere

if TYPE_CHECKING:
    import torch


OLDER_PLANNER = "(older planner)"
WIDTH = 118  # characters of a line of text below a cell, in a window of 1,440 pixels
OWN = 5  # columns about this run; those after them are of other machines


@dataclass(repr=False)
class Claims:
    """The claims that a lab has tested, as a table that displays itself.

    Attributes:
        rows: what `record`, `not_measured` and `figure` have added.
        device: where the figures are measured; by default the fastest device. Ranks may have to share a slower one.
    """

    rows: list[Measurement] = field(default_factory=list)
    device: "torch.device | None" = None

    def record(self, claim: str, said: str, subject: str, measured: float, unit: str, low: float, high: float) -> None:
        """Add one measured claim.

        Args:
            claim: its number in the syllabus, e.g. "C7".
            said: the claim in a few words.
            subject: what it was measured on: model, batch, number format.
            measured: the figure of this run, in `unit`.
            low, high: the claim held if `low <= measured <= high` (`math.inf` for "at least").
        """
        self.rows.append(Measurement(claim, said, subject, measured, unit, low, high, self._device_name()))

    def not_measured(self, claim: str, said: str, subject: str) -> None:
        """Add a claim that this machine cannot test, so that the table does not hide it.

        Args:
            claim, said: as in `record`.
            subject: what it would be measured on, and what is missing.
        """
        self.rows.append(Measurement(claim, said, subject, None, "", 0.0, 0.0, self._device_name()))

    def figure(self, said: str, subject: str, measured: float, unit: str) -> None:
        """Add a figure that nobody has made a claim about."""
        self.record("", said, subject, measured, unit, -math.inf, math.inf)

    @property
    def _kind(self) -> str:
        return (self.device or pick_device()).type

    def _device_name(self) -> str:
        return device_name(self.device or pick_device())

    def _table(self) -> list[tuple[str, ...]]:
        """Return header and rows; a column for each other device whose receipt has one of these claims."""
        others = [receipt for receipt in receipts_elsewhere() if any(receipt.find(row) for row in self.rows)]
        table = [("claim", "said", "measured on", "figure", "verdict", *(f"on {other.device}" for other in others))]
        for row in self.rows:
            theirs = [other.find(row) for other in others]
            columns = [_beside(row, match) for match in theirs]
            table.append((row.claim, row.said, row.subject, row.figure, verdict(row, self._kind), *columns))
        return table

    def __str__(self) -> str:
        table = self._table()
        widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
        if sum(widths) + 2 * (len(widths) - 1) > WIDTH:  # a notebook would break each line; its HTML has all columns
            widths = widths[:OWN]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=False)).rstrip() for line in table]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        remember_claims(self.rows)

        def line(cells: tuple[str, ...], tag: str) -> str:
            styles = ["text-align:left"] * (len(cells) - 2) + ["text-align:left; white-space:nowrap"] * 2
            columns = (f"<{tag} style='{s}'>{html.escape(c)}</{tag}>" for s, c in zip(styles, cells, strict=True))
            return f"<tr>{''.join(columns)}</tr>"

        header, *rows = self._table()
        return f"<table>{line(header, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"


def _beside(row: Measurement, match: Measurement | None) -> str:
    """Return a receipt's figure for a row. What is planned is the same on any machine, unless the planner was older."""
    if match is None:
        return "-"
    older = row.subject.startswith("planned:") and match.figure != row.figure
    return f"{match.figure} {OLDER_PLANNER}" if older else match.figure

"""The table of claims: what is said, and what the receipts say of it. `python -m helpers claims` prints it."""

from ...claims.measurement import Measurement
from ...claims.receipt import Receipt
from .said import SAID


def claims_table(receipts: list[Receipt]) -> str:
    """Return the table in Markdown: a row a claim, a column a device.

    A claim measured on several subjects is "held" or "did not hold" where all agree, else "held only for" some.
    """
    devices = [f"Measured on {receipt.device}" for receipt in receipts]
    lines = [_line(["", "What is said", "Where", *devices]), _line(["---"] * (3 + len(devices)))]
    for claim, said in SAID.items():
        lines.append(_line([claim, said.words, said.source, *(_measured(claim, receipt) for receipt in receipts)]))
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _measured(claim: str, receipt: Receipt) -> str:
    rows = [row for _, row in receipt.rows() if row.claim == claim]
    tested = [row for row in rows if row.measured is not None]
    if not tested:
        return "not measured"
    held = [row for row in tested if row.held]
    verdict = "**Held.**" if len(held) == len(tested) else "**Held only for some.**" if held else "**Did not hold.**"
    return "<br>".join([verdict, *map(_words, rows)])


def _words(row: Measurement) -> str:
    mark = {"held": "✓", "did not hold": "✗"}.get(row.verdict, "·")
    return f"{mark} {row.said} ({row.subject}): {row.figure}".replace("|", "/")

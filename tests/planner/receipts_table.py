"""The planner held against this project's own measurements on GPUs, as a table of docs/accuracy.md: `python -m` this.

The figures are those of `receipts/`, which `make gpu` writes.
"""

import itertools

from helpers.claims.receipt import receipts
from helpers.core.files import ROOT, atomic_write

PAGE = ROOT / "docs" / "accuracy.md"
BEGIN, END = "<!-- receipts: python -m tests.planner.receipts_table writes this -->\n", "<!-- /receipts -->\n"
SAID, RESERVED = "measured / predicted peak", "reserved lies where predicted"


def block() -> str:
    """Return the table between the marks."""
    lines = [
        "| GPU | recipe | peak, measured / planned | reserved, planned | measured |",
        "|---|---|---|---|---|",
    ]
    for receipt in receipts():
        rows = [row for _, row in receipt.rows() if row.measured is not None] if receipt.kind == "cuda" else []
        for row, after in itertools.pairwise([*rows, None]):
            if (row.claim, row.said) != ("planner", SAID):
                continue
            kept = after if after and (after.said, after.subject) == (RESERVED, row.subject) else None
            planned, measured = (f"{kept.low:.1f} to {kept.high:.1f} GiB", kept.figure) if kept else ("-", "-")
            lines.append(f"| {receipt.device} | {row.subject} | {row.measured:.4f} | {planned} | {measured} |")
    return "\n".join([*lines, ""])


def page() -> str:
    """Return the page with the table of today."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return before + BEGIN + block() + END + rest.split(END)[1]


if __name__ == "__main__":
    atomic_write(PAGE, page())

"""The planner compared with this project's own measurements on GPUs, as a table of docs/accuracy.md: `python -m` this.

The figures are those of `receipts/`, which `make gpu` writes.
"""

import itertools

from helpers.claims.receipt import receipts

from .published import TABLE_PAGE, write_between

MARKS = "<!-- receipts: python -m tests.planner.receipts_table writes this -->", "<!-- /receipts -->"
SAID, RESERVED = "measured / predicted peak", "reserved lies where predicted"


def table() -> str:
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
    return "\n".join(lines)


if __name__ == "__main__":
    write_between(TABLE_PAGE, MARKS, table())

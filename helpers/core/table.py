"""A table of text."""

from collections.abc import Sequence


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Return `rows` as aligned text, the first of them the header; the first column to the left, the others right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)

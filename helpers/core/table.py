"""Tables: aligned text, or HTML where a notebook shows it."""

import html
from collections.abc import Sequence

from .notebook import show_report

_NUMBER = frozenset("0123456789+-−<>±.")  # what the text of a figure starts with


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Return `rows` as text, the header first; the first column is aligned to the left, the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


class _Table:
    """Rows that are shown as HTML where there is room for it, and as text elsewhere."""

    def __init__(self, rows: Sequence[Sequence[str]]) -> None:
        self._rows = rows

    def __str__(self) -> str:
        return text_table(self._rows)

    def _repr_html_(self) -> str:
        header, *body = self._rows
        sides = [_side(column) for column in zip(*body, strict=True)]
        sides[:1] = ["left"]

        def line(cells: Sequence[str], tag: str) -> str:
            styled = zip(cells, sides, strict=True)
            return "".join(f'<{tag} style="text-align:{side}">{html.escape(cell)}</{tag}>' for cell, side in styled)

        lines = "".join(f"<tr>{line(row, 'td')}</tr>" for row in body)
        return f"<table><thead><tr>{line(header, 'th')}</tr></thead><tbody>{lines}</tbody></table>"


def _side(cells: Sequence[str]) -> str:
    """Return the side to which a column is aligned: figures to the right, so that their digits are below each other."""
    return "right" if all(cell[:1] in _NUMBER for cell in cells if cell) else "left"


def show_table(rows: Sequence[Sequence[str]]) -> None:
    """Show `rows`, the header first: as HTML in a notebook, as aligned text elsewhere."""
    show_report(_Table(rows))

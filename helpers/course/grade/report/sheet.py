"""Tables for spreadsheets: CSV in which nothing that a student wrote is run."""

import csv
import re
from collections.abc import Iterable, Sequence
from io import StringIO

# Where a formula may begin, also in full-width characters, and after what spreadsheets and importers trim.
_FORMULA = re.compile(r"^[\s\0\ufeff\u200b-\u200f\u2060]*[=+\-@＝＋－＠]|^[\t\r\n\0]")
_CONTROL = re.compile(r"[\0-\x08\x0b\x0c\x0e-\x1f\x7f]")


def sheet(rows: Iterable[Sequence[str | float | None]]) -> str:
    """Return `rows` as CSV. Numbers stay numbers, None is an empty cell, and words are never taken for a formula."""
    out = StringIO()
    csv.writer(out).writerows([inert(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return out.getvalue()


def inert(text: str) -> str:
    """Return `text` with an apostrophe before it where a spreadsheet would take it for a formula."""
    text = _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
    return f"'{text}" if _FORMULA.match(text) else text

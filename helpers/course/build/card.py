"""The card at the head of a lab: a table in its first cell that says what it teaches, and what it needs."""

import re

from .source import Source

_MINUTES = re.compile(r"(\d+)(?: to (\d+))? minutes")


def card(source: Source) -> dict[str, str]:
    """Return the rows of the card in the title cell, with the lab's title under "title"."""
    text = source.cells()[0].source
    rows = re.findall(r"^\| ([^|]+?) \| (.+?) \|$", text, flags=re.MULTILINE)
    title = text.partition("\n")[0].removeprefix("# ")
    return {"title": title if source.graded else f"{source.number} · {title}", **dict(rows)}


def minutes(source: Source) -> tuple[int, int]:
    """Return the least and the most minutes that the card says.

    Raises:
        ValueError: it says none.
    """
    found = _MINUTES.search(card(source)["Time"])
    if found is None:
        raise ValueError(f"{source.name}: the card's Time has no minutes.")
    return int(found[1]), int(found[2] or found[1])

"""Hints: one at a time, and only for those who ask.

>>> hint("number_formats.gap")  # doctest: +SKIP

A notebook shows them folded, each inside the one before it, so that "Run All" gives nothing away. A plain script
prints one more with each call.
"""

from ..core.inline_code import inline_code
from ..core.notebook import in_notebook
from .checking import find_part, last_verdicts

_given: dict[str, tuple[list[str], int]] = {}  # by part: the hints that were asked for last, and how many were printed


def hint(name: str) -> None:
    """Offer the hints of the part called `name`: those of the checks that failed last, else all of them.

    Raises:
        LookupError: there is no such part.
    """
    hints = hints_of(name)
    if not hints:
        print(f"{name}: all checks passed, so there is nothing to hint at.")
    elif in_notebook():
        from IPython.display import display

        display(
            {
                "text/html": folded(hints),
                "text/plain": f"{name}: {len(hints)} {'hint' if len(hints) == 1 else 'hints'}, folded",
            },
            raw=True,
        )
    else:
        before, given = _given.get(name, ([], 0))
        given = min(given + 1, len(hints)) if hints == before else 1
        _given[name] = hints, given
        print(f"{name}: hint {given} of {len(hints)}: {hints[given - 1]}")


def hints_of(name: str) -> list[str]:
    """Return the hints that help now: none when all checks of the part have passed."""
    part = find_part(name)
    verdicts = last_verdicts.get(part.name)
    texts = [v.hint for v in verdicts if not v.passed] if verdicts else [check.hint for check in part.checks]
    return list(dict.fromkeys(line.strip() for text in texts for line in text.splitlines()))


def folded(hints: list[str]) -> str:
    """Return `hints` as HTML: each one unfolds with a click, and shows that there is another."""
    inside = ""
    for number, text in reversed(list(enumerate(hints, 1))):
        title = f"Hint {number} of {len(hints)}"
        inside = f"<details><summary>{title}</summary><p>{inline_code(text)}</p>{inside}</details>"
    return inside

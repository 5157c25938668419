"""The contracts of the graded exercises, clause by clause, as they stand in the sources."""

import re

from helpers.course.build.source import sources
from helpers.exercises.checking import find_part

_ITEM = re.compile(r"(?:-|\d+\.) ")


def contracts(exercise: str) -> dict[str, list[str]]:
    """Return the clauses of each part of an exercise, such as "x1": its contract's opening, then each item.

    Parts without a contract of their own are left out.
    """
    source = next(source for source in sources() if source.exercise == exercise)
    found: dict[str, list[str]] = {}
    clauses: list[str] = []
    for cell in source.cells():
        if cell.cell_type == "markdown" and "**Contract.**" in cell.source:
            clauses = _clauses(cell.source)
        for name in re.findall(r"^check\(\"([\w.]+)\"", cell.source, flags=re.MULTILINE):
            if clauses and find_part(name).points:
                found[name], clauses = clauses, []
    return found


def _clauses(text: str) -> list[str]:
    """Return the opening of a contract and its items; what is indented below an item belongs to it."""
    lines = text[text.index("**Contract.**") :].removeprefix("**Contract.**").strip().splitlines()
    clauses, ended = [""], False
    for line in lines:
        if _ITEM.match(line):
            clauses.append(_ITEM.sub("", line, count=1))
            ended = False
        elif not line.strip():
            ended = len(clauses) > 1
        elif not ended or line.startswith(" "):
            clauses[-1] = f"{clauses[-1]} {line.strip()}".strip()
    return [clause for clause in clauses if clause]

"""The page for whoever decides on a flag: what it says, what it means, and the code that it is about."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..judge.result import Result
from ..store.conditions import Conditions
from .feedback import PAGES, page_name

# What a flag begins or ends like: what it means, and what to do.
_MEANINGS = (
    (
        r"replaced .* while ",
        "Something that the check depends on was replaced while it ran. The check got no points. Look for the code "
        "that replaced it: a student's own test that was left in, or an attempt to change what is measured.",
    ),
    (
        r"replaced .* put back",
        "It was restored before the checks ran, so no check saw it. Students' own experiments often cause this.",
    ),
    (
        r"ran code in other threads",
        "The check observes only one thread, so it could not see this work and got no points. Ask for an answer "
        "without threads.",
    ),
    (
        r"resembles the published solution",
        "The code has this share in common with the solution, names and layout aside. Short exercises have few right "
        "answers: ask the student to explain a line of it.",
    ),
    (
        r"resembles ",
        "These submissions share this much code, names and layout aside. Compare them side by side before you ask.",
    ),
    (
        r"\w+, line \d+: ",
        "The code contains something that an honest answer does not need. This costs no points. Read the marked line.",
    ),
    (
        r"\w+: .*\(.*\)$",
        "While the answer ran, its own lines used this part of Python or the system. This costs no points. If the "
        "flag names frames, the garbage collector or C, check whether the code looks for the check's own variables.",
    ),
)
_OTHER = "Something about the file or the code is unusual. This costs no points."


@dataclass(frozen=True)
class Flag:
    """A flag, for the page.

    Attributes:
        cell: the answer cell that it names; "" for all.
        line: the line that it names, counted from 1; 0 for none.
    """

    text: str
    meaning: str
    cell: str
    line: int


def flag(text: str) -> Flag:
    """Read a flag."""
    meaning = next((words for pattern, words in _MEANINGS if re.match(pattern, text)), _OTHER)
    place = re.match(r"(\w+)(?:, line (\d+))?: ", text)
    return Flag(text, meaning, place[1] if place else "", int(place[2] or 0) if place else 0)


def audit_name(result: Result) -> str:
    """Return the file name of the page."""
    return f"{result.exercise}-{page_name(result.student)}"


def audit(result: Result, conditions: Conditions, alike: Sequence[str] = ()) -> str:
    """Return the page on all flags of `result`; `alike` are the students whose submissions resemble it."""
    flags = [flag(text) for text in result.flags]
    code = {cell: list(enumerate(text.splitlines(), 1)) for cell, text in result.answers.items()}
    return PAGES.get_template("audit.html").render(
        r=result,
        flags=flags,
        code=code,
        conditions=conditions,
        page=page_name(result.student),
        others=[(student, f"{result.exercise}-{page_name(student)}") for student in alike],
    )

"""The page that a student gets back: what was missed first, then check by check, with the student's own code beside."""

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from itertools import groupby

import jinja2
from markupsafe import Markup

from ....core.inline_code import inline_code
from ....exercises.base import Verdict
from ....exercises.checking import find_part
from ...build.source import Source, sources
from ..intake.exercise_notebook import checks_of, is_answer_cell, learner_notebook
from ..judge.result import Result
from ..store.conditions import Conditions

PAGES = jinja2.Environment(loader=jinja2.PackageLoader(__package__, "."), autoescape=True, trim_blocks=True)
PAGES.filters["code"] = lambda text: Markup(inline_code(text))
MOST = 20_000  # characters of an answer that are shown

_RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}


def page_name(student: str) -> str:
    """Return a file name for a student's page: readable, safe on every system, different for different students.

    Names that a system could mistake for another one, or that look like one with a digest, get a digest.
    """
    plain = re.sub(r"[^\w-]+", "_", student, flags=re.ASCII).strip("_").lower()[:80] or "student"
    if plain == student and plain not in _RESERVED and not re.search(r"-[0-9a-f]{10}$", plain):
        return f"{plain}.html"
    return f"{plain}-{hashlib.sha256(student.encode(errors='backslashreplace')).hexdigest()[:10]}.html"


@dataclass
class Missed:
    """Checks that were missed for the same reason."""

    diagnosis: str
    verdicts: list[Verdict]


@dataclass
class Section:
    """One part of an exercise, for the page.

    Attributes:
        code: (answer cell, the student's code); cells that were not handed in are left out.
        has_cells: whether the part has answer cells; without, it runs those of the parts before it.
    """

    title: str
    points: int
    maximum: int
    missed: list[Missed]
    passed: list[Verdict]
    code: list[tuple[str, str]]
    has_cells: bool


@dataclass(frozen=True)
class _Part:
    title: str
    checks: tuple[str, ...]
    answers: tuple[str, ...]


@cache
def _layout(source: Source) -> tuple[str, tuple[_Part, ...]]:
    """Return the title of an exercise, and for each part its heading, its checks and the answer cells before them."""
    checks = checks_of(source)
    headings: list[str] = []
    parts: list[_Part] = []
    answers: list[str] = []
    for cell in learner_notebook(source).cells:
        if cell.cell_type == "markdown":
            headings += re.findall(r"^#+ (.*)", cell.source, flags=re.MULTILINE)
        elif cell.id in checks:
            names = tuple(check.name() for check in find_part(checks[cell.id]).checks)
            parts.append(_Part(re.sub(r"\s*\(\d+ points?\)$", "", headings[-1]), names, tuple(answers)))
            answers = []
        elif is_answer_cell(cell):
            answers.append(cell.id)
    return headings[0], tuple(parts)


def layout(exercise: str) -> tuple[str, tuple[_Part, ...]]:
    """Return the title and the parts of an exercise, such as "x1"."""
    return _layout(next(source for source in sources() if source.exercise == exercise))


def sections(result: Result) -> list[Section]:
    """Return the parts of a result, as the page shows them."""
    verdicts = {v.check: v for v in result.verdicts}
    parts = []
    for part in layout(result.exercise)[1]:
        mine = [verdicts[check] for check in part.checks if check in verdicts]
        missed: dict[str, Missed] = {}
        for v in mine:
            if not v.passed:
                missed.setdefault(v.diagnosis, Missed(v.diagnosis, [])).verdicts.append(v)
        code = [(name, _shortened(result.answers[name])) for name in part.answers if name in result.answers]
        points, maximum = sum(v.points for v in mine), sum(v.max_points for v in mine)
        passed = [v for v in mine if v.passed]
        parts.append(Section(part.title, points, maximum, [*missed.values()], passed, code, bool(part.answers)))
    return parts


def _shortened(code: str) -> str:
    return code if len(code) <= MOST else f"{code[:MOST]}\n… ({len(code) - MOST:,} more characters)"


def feedback(student: str, results: list[Result], conditions: Conditions) -> str:
    """Return a student's page. Nothing of the solution stands in it, and flags are for the instructor alone."""
    exercises = [(r, layout(r.exercise)[0], sections(r) if r.answers else []) for r in results]
    page = PAGES.get_template("feedback.html")
    return page.render(student=student, exercises=exercises, conditions=conditions)


def by_student(results: list[Result]) -> dict[str, list[Result]]:
    """Return the results of each student, in order."""
    ordered = sorted(results, key=lambda r: r.student)
    return {student: list(theirs) for student, theirs in groupby(ordered, key=lambda r: r.student)}

"""Write results for people: a gradebook for the instructor, a page for each student."""

import csv
import hashlib
import os
import re
from collections.abc import Iterable
from io import StringIO
from itertools import groupby
from pathlib import Path

import jinja2

from .result import Result

_PAGES = jinja2.Environment(loader=jinja2.PackageLoader(__package__, "."), autoescape=True, trim_blocks=True)


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path` so that readers see the old file or the new one, never half of it."""
    draft = path.with_name(path.name + ".part")
    draft.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")
    os.replace(draft, path)


def gradebook(results: Iterable[Result], seed: int) -> str:
    """Return the gradebook as CSV: a row a student and exercise, a column a check."""
    results = list(results)
    checks = list(dict.fromkeys(f"{r.exercise}.{v.check}" for r in results for v in r.verdicts))
    header = ["student", "exercise", "status", "total", "max", *checks, "seed", "reason"]
    out = StringIO()
    writer = csv.DictWriter(out, header, restval="")
    writer.writeheader()
    for r in results:
        row = {"student": _inert(r.student), "exercise": r.exercise, "status": r.status, "total": r.total}
        row |= {"max": r.maximum, "seed": seed, "reason": _inert(r.reason)}
        writer.writerow(row | {f"{r.exercise}.{v.check}": v.points for v in r.verdicts})
    return out.getvalue()


def _inert(text: str) -> str:
    """Keep a spreadsheet from taking a student's words for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def page_name(student: str) -> str:
    """Return a file name for a student's page: readable, safe on every system, different for different students."""
    plain = re.sub(r"[^\w-]+", "_", student, flags=re.ASCII).strip("_")[:80] or "student"
    digest = hashlib.sha256(student.encode(errors="backslashreplace")).hexdigest()[:6]
    return f"{plain}.html" if plain == student else f"{plain}-{digest}.html"


def feedback(student: str, results: list[Result], seed: int) -> str:
    """Return a student's page: what was reached, what to look at, the answers beside it."""
    return _PAGES.get_template("feedback.html").render(student=student, results=results, seed=seed)


def write_reports(results: list[Result], out: Path, seed: int) -> None:
    """Write `gradebook.csv` and one page a student under `out`."""
    write_whole(out / "gradebook.csv", gradebook(results, seed))
    (out / "feedback").mkdir(exist_ok=True)
    for student, theirs in groupby(results, key=lambda r: r.student):
        write_whole(out / "feedback" / page_name(student), feedback(student, list(theirs), seed))

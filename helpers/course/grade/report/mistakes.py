"""Which mistakes classes made: a page for each, with how many made it and where the lab teaches what it is about.

A mistake is a check together with a diagnosis, whose figures are left out: they differ where the mistake is the same.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ....core.files import atomic_write
from ....exercises.base import Outcome
from ...build.notebooks import repository
from ...build.source import Source, sources
from .feedback import PAGES, layout

_FIGURE = re.compile(r"\d[\d.,e+-]*")
_MISTAKE = (Outcome.MISSED, Outcome.RAISED)


class MistakesError(Exception):
    """There is nothing to count. The message says what to change."""


@dataclass
class Mistake:
    """One mistake.

    Attributes:
        example: the diagnosis as somebody got it.
        by_class: how many made it, by class.
    """

    exercise: str
    check: str
    rule: str
    hint: str
    example: str
    by_class: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """How many made it, in all classes."""
        return self.by_class.total()


@dataclass(frozen=True)
class Place:
    """Where something is taught: words, and the address of a notebook."""

    words: str
    address: str


def alike(diagnosis: str) -> str:
    """Return a diagnosis without its figures."""
    return _FIGURE.sub("#", diagnosis)


def write_mistakes(folders: Sequence[Path], out: Path) -> Path:
    """Write a page for each mistake in the results of `folders`, the output folders of `grade`; return the index.

    Raises:
        MistakesError: a folder has no results.
    """
    results = {name: _read(folder) for name, folder in _class_names(folders).items()}
    found = mistakes(results)
    tried = {name: Counter(r["exercise"] for r in theirs if _attempted(r)) for name, theirs in results.items()}
    out.mkdir(parents=True, exist_ok=True)
    named = _named(found)
    for mistake, name in named:
        page = PAGES.get_template("mistake.html").render(m=mistake, places=places(mistake), tried=tried)
        atomic_write(out / name, page)
    atomic_write(out / "index.html", PAGES.get_template("mistakes.html").render(mistakes=named, tried=tried))
    return out / "index.html"


def _attempted(entry: dict[str, Any]) -> bool:
    """Return whether a result, as in results.json, is of an answer that was attempted and has run."""
    return entry["seconds"] > 0 and entry["status"] != "blank"


def mistakes(results: dict[str, list[dict[str, Any]]]) -> list[Mistake]:
    """Return the mistakes in `results` (by class, as in results.json), most frequent first."""
    found: dict[tuple[str, str, str], Mistake] = {}
    for name, theirs in results.items():
        for r in theirs:
            for v in r["verdicts"]:
                words = v["diagnosis"]
                if v["outcome"] in _MISTAKE and r["seconds"]:
                    key = r["exercise"], v["check"], alike(words)
                    new = Mistake(r["exercise"], v["check"], v["rule"], v["hint"], words)
                    found.setdefault(key, new).by_class[name] += 1
    return sorted(found.values(), key=lambda m: (-m.count, m.exercise, m.check))


def places(mistake: Mistake) -> list[Place]:
    """Return where to read on: the part of the exercise, and its lab."""
    order = sources()
    source = next(source for source in order if source.exercise == mistake.exercise)
    part = next(part for part in layout(mistake.exercise)[1] if mistake.check in part.checks)
    lab = next(one for one in order if one.number == source.number and not one.graded)
    return [Place(part.title, _address(source, _heading(source, part.title))), Place(_title(lab), _address(lab, ""))]


def _address(source: Source, heading: str) -> str:
    anchor = "#" + re.sub(r"\s", "-", heading) if heading else ""  # as Jupyter makes them
    return f"{repository()}/blob/main/labs/{source.name}.ipynb{anchor}"


@cache
def _title(source: Source) -> str:
    return source.cells()[0].source.partition("\n")[0].lstrip("# ")


def _heading(source: Source, title: str) -> str:
    """Return the heading that begins with `title`, whole."""
    lines = [line for cell in source.cells() if cell.cell_type == "markdown" for line in cell.source.splitlines()]
    return next(line.lstrip("# ") for line in lines if line.startswith("#") and line.lstrip("# ").startswith(title))


def _named(found: Iterable[Mistake]) -> list[tuple[Mistake, str]]:
    """Return each mistake with the file name of its page: its check, and its number among the check's."""
    seen: Counter[str] = Counter()
    named = []
    for mistake in found:
        check = f"{mistake.exercise}-{mistake.check}"
        seen[check] += 1
        named.append((mistake, f"{check}-{seen[check]}.html"))
    return named


def _class_names(folders: Sequence[Path]) -> dict[str, Path]:
    """Name each folder: its own name, or its path where two have the same."""
    last = Counter(folder.resolve().name for folder in folders)
    return {f.resolve().name if last[f.resolve().name] == 1 else str(f): f for f in folders}


def _read(folder: Path) -> list[dict[str, Any]]:
    path = folder / "results.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))["results"]
    except (OSError, ValueError, KeyError, TypeError):
        raise MistakesError(f"{folder} has no results.json: give folders that grade --out has written.") from None

"""What a learner has measured and passed, lab by lab, in one small file on this machine.

When a notebook shows its table of claims, runs a check or reveals the answer to a guess, the result is saved in
`progress.json`: in the folder `.progress` of the course or, if that cannot be written to, of the home directory. It is
never sent anywhere; delete it whenever you like. `TAS_PROGRESS` names another folder; if it is empty or "off", nothing
is saved. Without it, only notebooks that run in a Jupyter server save their progress, so building, testing and grading
leave no trace.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..core.files import atomic_write, default_folder, user_folder
from ..core.notebook import in_notebook
from .measurement import Measurement

_FIELDS = {field.name for field in fields(Measurement)}
_FORMER = {"data_parallel.law": "data_parallel.link"}  # parts under names that they had, which older notebooks use


@dataclass(frozen=True)
class Guess:
    """A guess and what was measured, in `unit`; where zero is an ordinary answer, how far off counts (`difference`)."""

    guess: float
    measured: float
    unit: str
    difference: bool = False


@dataclass
class LabProgress:
    """The progress in one lab.

    Attributes:
        claims: its table, as last shown.
        checks: (passed, points, most points) of the last run of each, by "part.check".
        guesses: by question, what was guessed first, before the answer was out.
    """

    claims: list[Measurement] = field(default_factory=list)
    checks: dict[str, tuple[bool, int, int]] = field(default_factory=dict)
    guesses: dict[str, Guess] = field(default_factory=dict)


def progress_file() -> Path | None:
    """Return where this notebook's progress is saved; None if it is not."""
    if "TAS_PROGRESS" not in os.environ and not (in_notebook() and os.environ.get("JPY_SESSION_NAME")):
        return None
    folder = user_folder()
    return folder / "progress.json" if folder else None


def default_file() -> Path:
    """Return where notebooks in a Jupyter server save their progress by default."""
    return default_folder() / "progress.json"


def current_lab() -> str:
    """Return the name of the running notebook."""
    return Path(os.environ.get("JPY_SESSION_NAME") or "this lab").stem


def current_part(name: str) -> str:
    """Return the name that a part has now, also if `name` is one that it had."""
    return _FORMER.get(name, name)


def read_progress(path: Path | None) -> dict[str, LabProgress]:
    """Return the progress in the file at `path`, by lab; nothing if there is no file, or not one of ours."""
    with contextlib.suppress(OSError, ValueError, AttributeError, TypeError, KeyError):
        labs = json.loads(path.read_text(encoding="utf-8")) if path else {}
        return {lab: _lab(entry) for lab, entry in sorted(labs.items())}
    return {}


def _lab(entry: Mapping[str, Any]) -> LabProgress:
    claims = [Measurement(**row) for row in entry["claims"] if set(row) == _FIELDS]
    checks = entry["checks"]
    return LabProgress(
        claims,
        {_renamed(name): (bool(passed), int(points), int(most)) for name, (passed, points, most) in checks.items()},
        {question: Guess(**guess) for question, guess in entry.get("guesses", {}).items()},
    )


def _renamed(check: str) -> str:
    """Return "part.check" with the name that the part has now."""
    part, _, name = check.rpartition(".")
    return f"{current_part(part)}.{name}"


def remember_claims(rows: Sequence[Measurement]) -> None:
    """Save the claims of the running notebook instead of its earlier ones."""
    if rows:
        _change(lambda lab: setattr(lab, "claims", list(rows)))


def remember_checks(part: str, results: Iterable[tuple[str, bool, int, int]]) -> None:
    """Save the results of a part's checks: (name, passed, points, most points) of each."""
    _change(lambda lab: lab.checks.update({f"{part}.{name}": result for name, *result in results}))


def remember_guess(question: str, guess: Guess) -> None:
    """Save a guess; a later one for the same question was made with the answer known, and is not."""
    _change(lambda lab: lab.guesses.setdefault(question, guess))


def _change(change: Callable[[LabProgress], object]) -> None:
    path = progress_file()
    if path is None:
        return
    labs = read_progress(path)
    change(labs.setdefault(current_lab(), LabProgress()))
    text = json.dumps({lab: asdict(entry) for lab, entry in labs.items()}, indent=1)
    with contextlib.suppress(OSError):  # a full or locked disk is no reason to stop a lab
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, text)

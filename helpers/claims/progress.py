"""What a learner has measured and passed, lab by lab, in one small file on this machine.

When a notebook shows its table of claims, or runs a check, the result is kept in `progress.json`: in the folder
`.progress` of the course or, where that cannot be written, of the home directory. It is never sent anywhere; delete it
whenever you like. `TAS_PROGRESS` names another folder; empty or "off", it keeps nothing. Without it only notebooks that
run in a Jupyter server are remembered, so building, testing and grading leave no trace.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..core.files import ROOT
from ..core.notebook import in_notebook
from .measurement import Measurement

_KNOWN = {field.name for field in fields(Measurement)}


@dataclass
class LabProgress:
    """What is kept of one lab.

    Attributes:
        claims: its table, as it was shown last.
        checks: (passed, points reached, points to be had) by "part.check", when it was run last.
    """

    claims: list[Measurement] = field(default_factory=list)
    checks: dict[str, tuple[bool, int, int]] = field(default_factory=dict)


def progress_file() -> Path | None:
    """Return where progress is kept; None when it is not."""
    told = os.environ.get("TAS_PROGRESS")
    if told is not None:
        return None if told.strip().lower() in ("", "off") else Path(told) / "progress.json"
    if not (in_notebook() and os.environ.get("JPY_SESSION_NAME")):
        return None
    return usual_file()


def usual_file() -> Path:
    """Return where notebooks that run in a Jupyter server keep progress, if nothing else is said."""
    home = ROOT if os.access(ROOT, os.W_OK) else Path.home()
    return home / ".progress" / "progress.json"


def lab_here() -> str:
    """Return the name of the notebook that runs."""
    return Path(os.environ.get("JPY_SESSION_NAME") or "this lab").stem


def remembered(path: Path | None) -> dict[str, LabProgress]:
    """Return what the file at `path` keeps, by lab; nothing when there is no file, or not one of ours."""
    with contextlib.suppress(OSError, ValueError, AttributeError, TypeError, KeyError):
        kept = json.loads(path.read_text(encoding="utf-8")) if path else {}
        return {lab: _lab(entry) for lab, entry in sorted(kept.items())}
    return {}


def _lab(entry: Mapping[str, Any]) -> LabProgress:
    claims = [Measurement(**row) for row in entry["claims"] if set(row) == _KNOWN]
    return LabProgress(
        claims, {name: (bool(ok), int(got), int(most)) for name, (ok, got, most) in entry["checks"].items()}
    )


def remember_claims(rows: Sequence[Measurement]) -> None:
    """Keep the claims of the notebook that runs, in place of those kept of it before."""
    if rows:
        _change(lambda lab: setattr(lab, "claims", list(rows)))


def remember_checks(part: str, results: Iterable[tuple[str, bool, int, int]]) -> None:
    """Keep what became of a part's checks: (name, passed, points reached, points to be had) of each."""
    _change(lambda lab: lab.checks.update({f"{part}.{name}": result for name, *result in results}))


def _change(change: Any) -> None:
    path = progress_file()
    if path is None:
        return
    kept = remembered(path)
    change(kept.setdefault(lab_here(), LabProgress()))
    text = json.dumps({lab: asdict(entry) for lab, entry in kept.items()}, indent=1)
    with contextlib.suppress(OSError):  # a full or locked disk is no reason to stop a lab
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(text, encoding="utf-8", newline="\n")
        part.replace(path)

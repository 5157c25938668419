"""How far a learner has come: labs worked in, claims measured, checks passed, points."""

from pathlib import Path

from ..core.table import text_table
from .progress import LabProgress, progress_file, remembered, usual_file

_HEADER = ("lab", "claims measured", "checks passed", "points")


def status(path: Path | None = None) -> None:
    """Print a row for each lab in which something was measured or checked on this machine.

    Args:
        path: the file it is kept in; None takes the usual one (see `progress.py`).
    """
    path = path or progress_file() or usual_file()
    labs = remembered(path)
    if not labs:
        print("Nothing measured or checked in a notebook yet on this machine.")
        return
    print(text_table([_HEADER, *(_row(name, lab) for name, lab in labs.items())]))
    print(f"\nKept in {path}, and nowhere else. Delete it to begin anew.")


def _row(name: str, lab: LabProgress) -> tuple[str, ...]:
    passed, got, most = (sum(column) for column in zip((0, 0, 0), *lab.checks.values(), strict=True))
    checks = f"{passed} of {len(lab.checks)}" if lab.checks else "-"
    return name, str(len(lab.claims) or "-"), checks, f"{got} of {most}" if most else "-"

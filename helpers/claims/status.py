"""How far a learner has come: labs worked in, claims measured, checks passed, points."""

from pathlib import Path

from ..core.table import text_table
from .progress import LabProgress, default_file, progress_file, read_progress

_HEADER = ("lab", "claims measured", "checks passed", "points")


def status(path: Path | None = None) -> None:
    """Print a row for each lab in which something was measured or checked on this machine.

    Args:
        path: the file of progress; default: the usual one (see `progress.py`).
    """
    path = path or progress_file() or default_file()
    labs = read_progress(path)
    if not labs:
        print("Nothing has been measured or checked in a notebook on this machine yet.")
        return
    print(text_table([_HEADER, *(_row(name, lab) for name, lab in labs.items())]))
    print(f"\nSaved in {path}, and nowhere else. Delete the file to start again. As a page: python -m helpers progress")


def _row(name: str, lab: LabProgress) -> tuple[str, ...]:
    passed, points, most = (sum(column) for column in zip((0, 0, 0), *lab.checks.values(), strict=True))
    checks = f"{passed} of {len(lab.checks)}" if lab.checks else "-"
    return name, str(len(lab.claims) or "-"), checks, f"{points} of {most}" if most else "-"

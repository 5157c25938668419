"""Names that tell nothing, for graders and meetings that should not know whose work they see."""

import csv
import secrets
from collections.abc import Iterable
from pathlib import Path

from ....core.files import atomic_write
from .sheet import sheet


def pseudonyms(path: Path, students: Iterable[str]) -> dict[str, str]:
    """Return a name drawn by chance for each student, kept in the CSV file `path` (columns pseudonym, folder).

    Whoever is in the file keeps their name, so that pages of two runs can be compared.
    """
    names: dict[str, str] = {}
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            names = {row["folder"]: row["pseudonym"] for row in csv.DictReader(file)}
    for student in students:
        while student not in names or list(names.values()).count(names[student]) > 1:
            names[student] = f"student-{secrets.token_hex(3)}"
    # Sorted by pseudonym: the order of submissions, and when they came, tells nothing.
    rows = sorted((name, student) for student, name in names.items())
    atomic_write(path, sheet([("pseudonym", "folder"), *rows]))
    return names

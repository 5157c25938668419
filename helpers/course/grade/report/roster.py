"""Who is who: from the names of folders to the names, ids and addresses that a learning platform knows."""

import csv
from dataclasses import dataclass
from pathlib import Path

COLUMNS = ("folder", "name", "id", "email")


class RosterError(Exception):
    """The roster cannot be used. The message says what to change."""


@dataclass(frozen=True)
class Person:
    """A student as the platform knows them.

    Attributes:
        folder: the folder of their submissions.
        number: the institution's number; empty where the roster has none.
    """

    folder: str
    name: str
    number: str
    email: str


def read_roster(path: Path) -> dict[str, Person]:
    """Read a CSV file with the columns folder, name, id and email; further columns are passed over.

    Returns:
        The people, by folder.

    Raises:
        RosterError: the file cannot be read, lacks a column, or names a folder twice or not at all.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            header = [(name or "").strip().lower() for name in reader.fieldnames or []]
            rows = [(reader.line_num, dict(zip(header, row.values(), strict=False))) for row in reader]
    except OSError as error:
        raise RosterError(f"The roster {path} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise RosterError(f"The roster {path} is not CSV in UTF-8: {error}.") from None
    lacking = [name for name in COLUMNS if name not in header]
    if lacking:
        raise RosterError(f"The roster {path} lacks {', '.join(lacking)}. It needs the columns {', '.join(COLUMNS)}.")
    people: dict[str, Person] = {}
    for line, row in rows:
        folder, *rest = ((row.get(name) or "").strip() for name in COLUMNS)
        if not folder:
            raise RosterError(f"The roster {path} has no folder name in line {line}.")
        if folder in people:
            raise RosterError(f"The roster {path} names the folder {folder!r} twice, again in line {line}.")
        people[folder] = Person(folder, *rest)
    return people

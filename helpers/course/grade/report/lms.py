"""Grades for learning platforms: a row a student, a column an exercise.

A submission that is missing or unreadable, or that the grader itself could not run, has an empty cell: no grade, which
is not 0. All others bring their points, also those that took too long, crashed or wait for a human; the gradebook says
which those are.

Both platforms read an empty cell over an existing grade as "remove it"; both show all changes before they are made.
"""

from collections.abc import Iterable, Mapping

from ..judge.result import Result
from .roster import Person
from .sheet import sheet


def canvas(results: Iterable[Result], roster: Mapping[str, Person]) -> str:
    """Return the CSV for Canvas: Grades, Import.

    Canvas wants the columns up to Section in this order and, in the row called Points Possible, what each exercise is
    worth. It looks for a student by its own ID (which the names of files from Canvas contain), then by SIS user ID (the
    roster's id), by SIS login ID (the roster's email; without a roster the folder), and last by name. A column fills
    the assignment of the same title, and is offered as a new assignment where there is none.
    """
    results = list(results)
    exercises = _maxima(results)
    numbers = {r.student: r.canvas.split("_")[-2] for r in results if r.canvas}
    rows: list[list[str | float | None]] = [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *map(str.upper, exercises)],
        ["    Points Possible", "", "", "", "", *exercises.values()],
    ]
    for folder, points in _points(results).items():
        person = roster.get(folder, Person(folder, folder, "", folder))
        # A student of that name would set what exercises are worth.
        name = person.name.replace("Points Possible", "Points possible")
        rows.append([name, numbers.get(folder, ""), person.number, person.email, "", *map(points.get, exercises)])
    return sheet(rows)


def moodle(results: Iterable[Result], roster: Mapping[str, Person]) -> str:
    """Return the CSV for Moodle: Grades, Import, CSV file; encoding UTF-8, separator comma.

    Moodle asks which column says who a student is: map "ID number" or "Email address"; without a roster, "Username"
    holds the names of folders. Then map each exercise to a grade item, or to a new one. A single student whom Moodle
    cannot find stops the whole import, so with a roster only the students it names are written.
    """
    results = list(results)
    exercises = _maxima(results)
    rows: list[list[str | float | None]] = [
        ["Full name", "Username", "ID number", "Email address", *map(str.upper, exercises)]
    ]
    for folder, points in _points(results).items():
        person = roster.get(folder)
        if person or not roster:
            who = [person.name, "", person.number, person.email] if person else [folder, folder, "", ""]
            rows.append([*who, *map(points.get, exercises)])
    return sheet(rows)


def _maxima(results: Iterable[Result]) -> dict[str, int]:
    return {r.exercise: r.maximum for r in sorted(results, key=lambda r: r.exercise)}


def _points(results: Iterable[Result]) -> dict[str, dict[str, int]]:
    """Return points by student and exercise; no entry where there is nothing to grade."""
    points: dict[str, dict[str, int]] = {}
    for r in results:
        theirs = points.setdefault(r.student, {})
        if r.has_grade:
            theirs[r.exercise] = r.total
    return points

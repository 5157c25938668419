"""From a folder with the work of a class to one hand-in for each student and exercise."""

import os
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ...build.source import Source, sources
from .files import Found, Search, is_notebook
from .hand_in import HandIn, checks_of, grading_notebook, reference_hand_in
from .notebook_file import Cell, NotebookError, read_cells
from .outline import Outline, outline
from .suspicious import flags_of

__all__ = ["HandIn", "checks_of", "collect", "grading_notebook", "reference_hand_in"]

_NOT_ONE_LINE = re.compile(r"[\0-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_SYSTEM = {".DS_Store", ".git", ".gitignore", ".ipynb_checkpoints", "__MACOSX", "Thumbs.db", "desktop.ini"}


@dataclass
class _Notebook:
    """A notebook that a student handed in; `cells` or `problem`, and the notebook it is a copy of, if that is known."""

    found: Found
    cells: list[Cell]
    problem: str
    home: Source | None

    @cached_property
    def answers(self) -> dict[str, str]:
        return outline(self.home).answers(self.cells)[0]

    def what(self) -> str:
        """Say what it is, or what is wrong with it."""
        return self.problem or (self.home.name if self.home else "no notebook of the course")

    def order(self) -> tuple:
        """Return the sort key that puts the one to be graded first."""
        untouched = outline(self.home).untouched(self.answers)
        return untouched, _rank(self.found, self.home), self.found.depth, -self.found.modified, self.found.path


def collect(submissions: Path, exercises: list[Source]) -> list[HandIn]:
    """Return a hand-in for each student in `submissions` and each of `exercises`, sorted by student.

    A student is, directly in `submissions`,
    - a folder, by its name as it stands (Moodle: "Ada Lovelace_12345_assignsubmission_file_");
    - a zip archive, by its name as it stands: "ada" and "ada.zip" are two students;
    - all notebooks whose names are the same up to the name of an exercise, by that beginning (Canvas:
      "lovelaceada_12345_67890_14_x4_lora-1.ipynb" is by "lovelaceada_12345_67890"; its numbers tell two of the same
      name apart). A notebook whose name has no such beginning is a student by its whole name;
    - a link, which is not followed: all its hand-ins are unreadable.
    Hidden files, except those that begin with two dots, are left out; other files are named in a printed line.

    In a student's name, what no file can be written with is replaced by its escape: control characters other than
    newline and tab, and bytes that are no text.

    Which notebook is for which exercise is decided by its content. Of several the worked one, with the exact name,
    in the shallowest folder, the newest, is taken.

    Raises:
        OSError: `submissions` cannot be listed.
    """
    places, strays = _places(submissions, exercises)
    if strays:
        print(f"Not looked at: {_listed(strays, most=10)}.")
    outlines = [outline(source) for source in sources() if source not in exercises]
    outlines = [outline(source) for source in exercises] + outlines
    taken: set[str] = set()
    hand_ins = []
    for name in sorted(places):
        student = _student(name, taken)
        hand_ins += _hand_ins(student, places[name], f"{name}_", exercises, outlines)
    return sorted(hand_ins, key=lambda hand_in: hand_in.student)


def _places(submissions: Path, exercises: list[Source]) -> tuple[dict[str, list[Path]], list[str]]:
    """Map each student to what is theirs; return also the names of what is nobody's."""
    places: dict[str, list[Path]] = {}
    strays, notebooks = [], []
    with os.scandir(submissions) as entries:
        for entry in entries:
            hidden = entry.name.startswith(".") and not entry.name.startswith("..")
            plain = entry.is_file(follow_symlinks=False)
            if hidden or entry.name in _SYSTEM:
                strays += [] if entry.name in _SYSTEM else [entry.name]
            elif plain and is_notebook(entry.name):
                notebooks.append(entry.name)
            elif entry.is_dir(follow_symlinks=False) or entry.is_symlink() or entry.name.lower().endswith(".zip"):
                places[entry.name] = [submissions / entry.name]
            else:
                strays.append(entry.name)
    beside = set(places)
    for name in sorted(notebooks):
        before = [name[:at] for source in exercises if (at := name.lower().rfind(source.name.lower())) > 0]
        student = max(before, key=len).removesuffix("_") if before else ""
        places.setdefault(name if not student or student in beside else student, []).append(submissions / name)
    return places, sorted(strays)


def _student(name: str, taken: set[str]) -> str:
    """Return a name that files can be written with, and that nobody else has."""
    student = _NOT_ONE_LINE.sub(lambda m: m[0] if m[0] in "\n\t" else _escaped(m), name)
    while student in taken:
        student += "'"
    taken.add(student)
    return student


def _hand_ins(
    student: str, places: list[Path], before: str, exercises: list[Source], outlines: list[Outline]
) -> list[HandIn]:
    """Read all that a student handed in; `before` is what an LMS puts before the name of a file of theirs."""
    search = Search()
    notebooks = []
    try:
        for place in places:
            for found in search.notebooks(place):
                found.path = found.path.removeprefix(before)
                notebooks.append(_notebook(found, outlines))
    except Exception as error:  # whatever is in a folder, the others get their grades
        problem = ("unreadable", f"It could not be looked through: {type(error).__name__}: {_shown(str(error))}.")
        return [HandIn(student, source, problem=problem) for source in exercises]
    return [_hand_in(student, source, notebooks, search) for source in exercises]


def _notebook(found: Found, outlines: list[Outline]) -> _Notebook:
    cells, problem = [], found.problem
    if not problem:
        try:
            cells = read_cells(found.data)
        except NotebookError as error:
            problem = str(error)
    found.data = b""
    named = [o for o in outlines if _rank(found, o.source) < 2]
    if problem:
        return _Notebook(found, [], problem, named[0].source if named else None)
    likeness = {o.source: o.likeness(cells) for o in outlines}
    most = max(likeness.values())
    alike = [source for source, score in likeness.items() if score == most]
    by_name = [o.source for o in named if most == 0 or o.source in alike]
    if by_name:
        return _Notebook(found, cells, "", by_name[0])
    return _Notebook(found, cells, "", alike[0] if most and len(alike) == 1 else None)


def _rank(found: Found, source: Source) -> int:
    """Return 0 if the file has the name of `source`, 1 if that is part of its name, 2 if not."""
    name = unicodedata.normalize("NFC", found.name)
    return 0 if name == f"{source.name}.ipynb" else 1 if source.name.lower() in name.lower() else 2


def _hand_in(student: str, source: Source, notebooks: list[_Notebook], search: Search) -> HandIn:
    """Choose the notebook for `source` and take its answers."""
    hand_in = HandIn(student, source)
    mine = [notebook for notebook in notebooks if notebook.home == source]
    broken = [notebook for notebook in mine if notebook.problem]
    readable = sorted((n for n in mine if not n.problem), key=_Notebook.order)
    if not readable:
        hand_in.problem = _unreadable(broken, search) or ("missing", _missing(source, notebooks, search))
        return hand_in
    chosen, *others = readable
    hand_in.answers, flags = outline(source).answers(chosen.cells)
    if not hand_in.answers:
        names = ", ".join(outline(source).stubs)
        strange = " ".join(flag for flag in flags if "missing" not in flag)
        reason = f"{_shown(chosen.found.path)} has none of the answer cells: {names}. {strange}".strip()
        hand_in.problem = ("unreadable", reason)
        return hand_in
    if _rank(chosen.found, source):
        hand_in.flags.append(f"Taken from {_shown(chosen.found.path)}, which is not named {source.name}.ipynb.")
    differ = [other.found.path for other in others if other.answers != chosen.answers]
    if differ:
        hand_in.flags.append(f"Taken from {_shown(chosen.found.path)}; with other answers: {_listed(differ)}.")
    if broken:
        sentences = [f"{n.found.path} {n.problem}" for n in broken]
        hand_in.flags.append(f"Not readable beside it: {_listed(sentences, length=200)}.")
    if search.closed:
        hand_in.flags.append(f"Not looked into: {_listed(search.closed, length=200)}.")
    hand_in.flags += [*flags, *flags_of(hand_in.answers)]
    return hand_in


def _unreadable(broken: list[_Notebook], search: Search) -> tuple[str, str] | None:
    """Say what could not be read, if the hand-in may be in it."""
    broken = sorted(broken, key=lambda n: (_rank(n.found, n.home), n.found.depth, n.found.path))
    sentences = [f"{n.found.path} {n.problem}" for n in broken] + search.closed
    return ("unreadable", f"{_listed(sentences, length=200)}.") if sentences else None


def _missing(source: Source, notebooks: list[_Notebook], search: Search) -> str:
    """Say that nothing is there for `source`, and what is there."""
    wanted = f"{source.name}.ipynb"
    for notebook in notebooks:
        if _rank(notebook.found, source) < 2 and notebook.home:
            return f"{wanted} was not handed in: {_shown(notebook.found.path)} holds {notebook.home.name}."
    seen = [f"{n.found.path} ({n.what()})" for n in notebooks]
    there = f"the notebooks there: {_listed(seen, length=160)}" if seen else "there is no notebook in the folder"
    if search.others:
        there += f"; other files: {_listed(search.others)}"
    if search.links:
        there += f"; links, which are not followed: {_listed(search.links)}"
    return f"{wanted} was not handed in; {there}."


def _listed(names: Iterable[str], most: int = 4, length: int = 80) -> str:
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(_shown(name, length) for name in names[:most]) + more


def _shown(name: str, length: int = 80) -> str:
    """Return a name for people: on one line, not too long, writable to any file."""
    text = name if len(name) <= length else f"{name[: length // 2]}…{name[-(length // 2) :]}"
    return _NOT_ONE_LINE.sub(_escaped, text)


def _escaped(match: re.Match) -> str:
    return match[0].encode("unicode_escape").decode()

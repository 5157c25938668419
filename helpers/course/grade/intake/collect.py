"""Turn a folder with the work of a class into one submission for each student and exercise."""

import os
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from pathlib import Path

from ...build.source import Source, sources
from .cells import Cell, NotebookError, read_cells
from .folders_and_zips import NotebookFile, Search, is_notebook
from .hand_in import HandIn
from .outline import Outline, outline
from .suspicious_code import flags_of

_NOT_ONE_LINE = re.compile(r"[\0-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# What Canvas puts before the names of files in its download: NAME_USER_ATTACHMENT_ or NAME_LATE_USER_ATTACHMENT_.
_CANVAS = re.compile(r"(?P<name>[^_]+)(?P<late>_LATE)?_(?P<user>\d+)_(?P<attachment>\d+)_(?=[^_])")
_SYSTEM = {".DS_Store", ".git", ".gitignore", ".ipynb_checkpoints", "__MACOSX", "Thumbs.db", "desktop.ini"}


@dataclass(frozen=True)
class _Notebook:
    """A notebook that a student handed in.

    Attributes:
        file: without its data, which may be large.
        cells: empty when there is a problem.
        problem: why it cannot be read; "" if it can.
        home: the notebook of the course that it is a copy of; None if it resembles none.
        canvas: what Canvas has put before the name of the file that it lay in; None if it did not come from there.
    """

    file: NotebookFile
    cells: list[Cell]
    problem: str
    home: Source | None
    canvas: re.Match[str] | None = None

    @property
    def path(self) -> str:
        """Where it lies, below the student's folder."""
        return self.file.path

    @cached_property
    def answers(self) -> dict[str, str]:
        """The answers in it, by the name of their cell."""
        return outline(self.home).answers(self.cells)[0]

    def description(self) -> str:
        """Say what it is, or what is wrong with it."""
        if self.problem or not self.home:
            return self.problem or "no notebook of the course"
        kind = self.home.exercise.upper() if self.home.graded else "ungraded lab"
        return kind if self.file.name == f"{self.home.name}.ipynb" else f"{kind} {self.home.name}"

    def order(self) -> tuple:
        """Return the sort key that puts the one to be graded first."""
        untouched = outline(self.home).untouched(self.answers)
        attachment = int(self.canvas["attachment"]) if self.canvas else 0  # Canvas counts up: the newest is the largest
        return untouched, -attachment, _rank(self.file, self.home), self.file.depth, -self.file.modified, self.path


def collect(submissions: Path, exercises: list[Source]) -> list[HandIn]:
    """Return a submission for each student in `submissions` and each of `exercises`, sorted by student.

    A student is, directly in `submissions`,
    - a folder, by its name as it stands (Moodle: "Ada Lovelace_12345_assignsubmission_file_");
    - a zip archive, by its name without the ending; beside a folder "ada", "ada.zip" is another student;
    - all notebooks and archives that Canvas named after the same student: "lovelaceada_12345_67890_14_x4_lora-1.ipynb"
      and "lovelaceada_LATE_12345_67999_work.zip" are by "lovelaceada". Two students of the same name, whose first
      numbers differ, are "lovelaceada_12345" and "lovelaceada_12399";
    - all other notebooks whose names are the same up to the name of an exercise, by that beginning. A notebook whose
      name has no such beginning is a student by its whole name;
    - a link, which is not followed: all its submissions are unreadable.
    Hidden files, except those that begin with two dots, are left out; other files are named in a printed line.

    In a student's name, what no file can be written with is replaced by its escape: control characters other than
    newline and tab, and bytes that are no text.

    Which notebook is for which exercise is decided by its content. Of several the worked one, with the exact name,
    in the shallowest folder, the newest, is taken; of files from Canvas, the one that was attached last.

    Raises:
        OSError: `submissions` cannot be listed.
    """
    places, strays = _places(submissions, exercises)
    if strays:
        print(f"Skipped: {_listed(strays, most=10)}.")
    outlines = [outline(source) for source in sources() if source not in exercises]
    outlines = [outline(source) for source in exercises] + outlines
    names: set[str] = set()
    hand_ins = []
    for name in sorted(places):
        bare = name[:-4] if name.lower().endswith(".zip") else name
        student = _student(name if bare in places else bare, names)
        hand_ins += _hand_ins(student, places[name], f"{name}_", exercises, outlines)
    return sorted(hand_ins, key=lambda hand_in: hand_in.student)


def class_below(submissions: Path, exercises: list[Source]) -> Path | None:
    """Return the only student's folder in `submissions` if it looks like a class, else None.

    It does if two folders or archives in it are for the same exercise: one student would submit that once.
    """
    places, _ = _places(submissions, exercises)
    folders = [paths[0] for paths in places.values() if paths[0].is_dir() and not paths[0].is_symlink()]
    if len(places) != 1 or not folders:
        return None
    try:
        inner, _ = _places(folders[0], exercises)
    except OSError:
        return None
    students = {name for name, paths in inner.items() if not is_notebook(paths[0].name)}
    if len(students) < 2:
        return None
    outlines = [outline(source) for source in sources()]
    counts: dict[Source, int] = {}
    for name in students:
        for hand_in in _hand_ins(name, inner[name], "", exercises, outlines):
            counts[hand_in.source] = counts.get(hand_in.source, 0) + (hand_in.problem is None)
    return folders[0] if max(counts.values(), default=0) > 1 else None


def one_student(submissions: Path, exercises: list[Source]) -> bool:
    """Return whether `submissions` looks like the folder of one student: nothing in it has the name of a student.

    It looks so if all that is in it are notebooks by their own names, or folders and archives named after exercises.
    """
    places, _ = _places(submissions, exercises)
    own = tuple(name for source in exercises for name in (source.name.lower(), f"{source.exercise}.", source.exercise))
    return bool(places) and all(is_notebook(name) or name.lower().startswith(own) for name in places)


def _places(submissions: Path, exercises: list[Source]) -> tuple[dict[str, list[Path]], list[str]]:
    """Map each student to their folder, archive or notebooks; return also the names of what belongs to nobody."""
    places: dict[str, list[Path]] = {}
    strays, notebooks, attached = [], [], []
    with os.scandir(submissions) as entries:
        for entry in entries:
            hidden = entry.name.startswith(".") and not entry.name.startswith("..")
            plain = entry.is_file(follow_symlinks=False)
            if hidden or entry.name in _SYSTEM:
                strays += [] if entry.name in _SYSTEM else [entry.name]
            elif plain and _of_canvas(entry.name) and (is_notebook(entry.name) or entry.name.lower().endswith(".zip")):
                attached.append(entry.name)
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
    for student, names in _students_of_canvas(attached, set(places)).items():
        places[student] = [submissions / name for name in names]
    return places, sorted(strays)


def _of_canvas(name: str) -> re.Match[str] | None:
    """Return what Canvas put before a file's name; None if nothing, as in "ada_12_04_x2_batch_256.ipynb"."""
    found = _CANVAS.match(name)
    cut = found and any(0 <= name.lower().rfind(source.name.lower()) < found.end() for source in sources())
    return None if cut else found


def _students_of_canvas(files: list[str], others: set[str]) -> dict[str, list[str]]:
    """Map each student to the names of their files. Students of the same name are told apart by Canvas's numbers."""
    users: dict[str, dict[str, list[str]]] = {}
    for file in sorted(files):
        found = _of_canvas(file)
        users.setdefault(found["name"], {}).setdefault(found["user"], []).append(file)
    return {
        name if len(theirs) == 1 and name not in others else f"{name}_{user}": names
        for name, theirs in users.items()
        for user, names in theirs.items()
    }


def _student(name: str, others: set[str]) -> str:
    """Return a name that can be written to files and that none of the `others` has; add it to them."""
    student = _NOT_ONE_LINE.sub(lambda m: m[0] if m[0] in "\n\t" else _escaped(m), name)
    while student in others:
        student += "'"
    others.add(student)
    return student


def _hand_ins(
    student: str, places: list[Path], prefix: str, exercises: list[Source], outlines: list[Outline]
) -> list[HandIn]:
    """Read all that a student handed in; `prefix` begins the names of their files, unless Canvas named them."""
    search = Search()
    notebooks: list[_Notebook] = []

    canvas = [None if place.is_dir() else _of_canvas(place.name) for place in places]

    def read(file: NotebookFile, found: re.Match[str] | None) -> _Notebook:
        path = file.path.removeprefix(found[0] if found else prefix)
        return replace(_notebook(replace(file, path=path), outlines), canvas=found)

    try:
        for place, found in zip(places, canvas, strict=True):
            # map: no loop variable keeps the data of the last file
            notebooks += map(read, search.notebooks(place), repeat(found))
    except Exception as error:  # whatever is in a folder, the others get their grades
        problem = ("unreadable", f"It could not be searched: {type(error).__name__}: {_shown(str(error))}.")
        return [HandIn(student, source, problem=problem) for source in exercises]
    zipped = len(places) == 1 and places[0].suffix.lower() == ".zip" and not places[0].is_dir()
    where = "the ZIP file" if zipped else "the folder" if places[0].is_dir() else "the submission"
    hand_ins = [_hand_in(student, source, notebooks, search, where) for source in exercises]
    known = next((found[0][:-1] for found in canvas if found), "")  # also for what was not submitted
    return [replace(hand_in, canvas=hand_in.canvas or known) for hand_in in hand_ins]


def _notebook(file: NotebookFile, outlines: list[Outline]) -> _Notebook:
    """Read the cells of `file`, and find out which notebook of the course it is a copy of."""
    cells, problem = [], file.problem
    if not problem:
        try:
            cells = read_cells(file.data)
        except NotebookError as error:
            problem = str(error)
    file = replace(file, data=b"")
    named = [o for o in outlines if _rank(file, o.source) < 2]
    if problem:
        return _Notebook(file, [], problem, named[0].source if named else None)
    likeness = {o.source: o.likeness(cells) for o in outlines}
    most = max(likeness.values())
    alike = [source for source, score in likeness.items() if score == most]
    by_name = [o.source for o in named if most == 0 or o.source in alike]
    if by_name:
        return _Notebook(file, cells, "", by_name[0])
    graded = [source for source in alike if source.graded]  # a cell alone may be that of a lab, too
    return _Notebook(file, cells, "", (graded or alike)[0] if most and len(graded or alike) == 1 else None)


def _rank(file: NotebookFile, source: Source) -> int:
    """Return 0 if the file has the name of `source`, 1 if that is part of its name, 2 if not."""
    name = unicodedata.normalize("NFC", file.name)
    return 0 if name == f"{source.name}.ipynb" else 1 if source.name.lower() in name.lower() else 2


def _hand_in(student: str, source: Source, notebooks: list[_Notebook], search: Search, where: str) -> HandIn:
    """Choose the notebook for `source` and take its answers.

    A notebook that cannot be read, and whose name does not tell what it is, may be the one for `source`.
    """
    broken = [notebook for notebook in notebooks if notebook.problem and notebook.home in (source, None)]
    readable = sorted((n for n in notebooks if n.home == source and not n.problem), key=_Notebook.order)
    if not readable:
        problem = _unreadable(broken, search) or ("missing", _missing(source, notebooks, search, where))
        return HandIn(student, source, problem=problem)
    chosen, *others = readable
    answers, flags = outline(source).answers(chosen.cells)
    if not answers:
        names = ", ".join(outline(source).stubs)
        oddities = " ".join(flag for flag in flags if "missing" not in flag)
        reason = f"{_shown(chosen.path)} has none of the answer cells: {names}. {oddities}".strip()
        return HandIn(student, source, problem=("unreadable", reason))
    origin = _flags_of_choice(source, chosen, others, broken, search)
    found = chosen.canvas
    late = ["Late, according to Canvas."] if found and found["late"] else []
    flags = [*late, *origin, *flags, *flags_of(answers)]
    return HandIn(student, source, answers, flags=flags, canvas=found[0][:-1] if found else "")


def _flags_of_choice(
    source: Source, chosen: _Notebook, others: list[_Notebook], broken: list[_Notebook], search: Search
) -> list[str]:
    """Say what speaks against the notebook that was chosen: others beside it, and what could not be read.

    Any name will do, since people and platforms rename files, unless it is the name of another notebook of the course.
    """
    flags = []
    if any(_rank(chosen.file, other) == 0 for other in sources() if other != source):
        what = f"contains {source.name} under the name of another notebook"
        flags.append(f"Taken from {_shown(chosen.path)}, which {what}.")
    differ = [other.path for other in others if other.answers != chosen.answers]
    if differ:
        flags.append(f"Taken from {_shown(chosen.path)}; these notebooks have other answers: {_listed(differ)}.")
    if broken:
        sentences = [f"{n.path} {n.problem}" for n in broken]
        flags.append(f"There are also unreadable notebooks: {_listed(sentences, length=200)}.")
    if search.closed:
        flags.append(f"Skipped: {_listed(search.closed, length=200)}.")
    return flags


def _unreadable(broken: list[_Notebook], search: Search) -> tuple[str, str] | None:
    """Say what could not be read, if the submission may be in it."""
    broken = sorted(broken, key=lambda n: (_rank(n.file, n.home) if n.home else 3, n.file.depth, n.path))
    sentences = [f"{n.path} {n.problem}" for n in broken] + search.closed
    return ("unreadable", f"{_listed(sentences, length=200)}.") if sentences else None


def _missing(source: Source, notebooks: list[_Notebook], search: Search, where: str) -> str:
    """Say that nothing was submitted for `source`, and what was submitted instead; `where` is "the folder"."""
    expected = f"{source.name}.ipynb"
    for notebook in notebooks:
        if _rank(notebook.file, source) < 2 and notebook.home:
            return f"{expected} was not submitted: {_shown(notebook.path)} contains {notebook.home.name}."
    others = [f"{n.path} ({n.description()})" for n in notebooks]
    text = f"{where} contains {_listed(others, length=160)}" if others else f"there is no notebook in {where}"
    if search.others:
        text += f"; other files: {_listed(search.others)}"
    if search.links:
        text += f"; links, which are not followed: {_listed(search.links)}"
    return f"{expected} was not submitted; {text}."


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

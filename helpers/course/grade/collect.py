"""Find the hand-ins in a folder, and take from each nothing but its answer cells."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from nbformat import NotebookNode

from ..build import make_notebook
from ..source import Source

# Comments that nbval obeys, such as NBVAL_SKIP: whether a cell runs is not for the learner to say.
_ORDERS = re.compile(r"#\s*(?=NBVAL_|PYTEST_VALIDATE_)", re.IGNORECASE)


@dataclass
class HandIn:
    """What one student handed in for one exercise.

    Attributes:
        problem: (status, reason) when nothing can be graded.
        flags: what a human should look at; no flag costs a point.
    """

    student: str
    source: Source
    answers: dict[str, str] = field(default_factory=dict)
    problem: tuple[str, str] | None = None
    flags: list[str] = field(default_factory=list)


def read_hand_in(folder: Path, source: Source) -> HandIn:
    """Read the hand-in for `source` from a student's folder; what cannot be read is said, not raised."""
    hand_in = HandIn(folder.name, source)
    path = folder / f"{source.name}.ipynb"
    if not path.exists():
        others = sorted(p.name for p in folder.iterdir() if p.suffix == ".ipynb")
        seen = f"the notebooks there: {', '.join(others)}" if others else "there is no notebook in the folder"
        hand_in.problem = ("missing", f"{path.name} was not handed in; {seen}.")
        return hand_in
    try:
        raw = json.loads(path.read_text(encoding="utf-8-sig"))
        for cell in raw["cells"]:
            name = _grade_id(cell)
            if name is not None:
                text = "".join(cell.get("source", ""))  # a string, or a list of lines
                # An answer cell that was split, or copied and changed, comes in several pieces: all count, in order.
                hand_in.answers[name] = f"{hand_in.answers[name]}\n{text}" if name in hand_in.answers else text
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        hand_in.problem = ("unreadable", f"{path.name} is not a notebook: {error}".splitlines()[0][:200])
        return hand_in
    wanted = [cell.id for cell in make_notebook(source, solved=False).cells if _is_answer(cell)]
    hand_in.answers = {name: text for name, text in hand_in.answers.items() if name in wanted}
    if not hand_in.answers:
        hand_in.problem = ("unreadable", f"{path.name} has none of the answer cells: {', '.join(wanted)}.")
    return hand_in


def _grade_id(cell: object) -> str | None:
    """Return the grade id of a code cell; None for all that is no such cell, however odd."""
    if not isinstance(cell, dict) or cell.get("cell_type") != "code":
        return None
    nbgrader = (cell.get("metadata") or {}).get("nbgrader") or {}
    return nbgrader.get("grade_id")


def reference_hand_in(source: Source) -> HandIn:
    """Return the reference solution as if somebody had handed it in."""
    cells = [cell for cell in make_notebook(source, solved=True).cells if _is_answer(cell)]
    return HandIn("reference", source, {cell.id: cell.source for cell in cells})


def _is_answer(cell: NotebookNode) -> bool:
    return bool(cell.metadata.get("nbgrader", {}).get("solution"))


def checks_of(source: Source) -> dict[str, str]:
    """Map each graded check cell of `source` to the name of its part, e.g. {"scaler_check": "x1.scaler"}."""
    found = {}
    for cell in make_notebook(source, solved=False).cells:
        if cell.metadata.get("nbgrader", {}).get("grade"):
            found[cell.id] = re.search(r'check\("([\w.]+)"', cell.source)[1]
    return found


def grading_notebook(hand_in: HandIn, seed: int) -> NotebookNode:
    """Return the instructor's notebook with the learner's answers in it.

    Set-up and check cells are the instructor's. Check cells ask the grading kernel to collect evidence; a first line
    tells it the name of each answer cell.
    """
    notebook = make_notebook(hand_in.source, solved=False)
    cells = []
    for cell in notebook.cells:
        nbgrader = cell.metadata.get("nbgrader", {})
        if nbgrader.get("solution"):
            if cell.id not in hand_in.answers:
                continue
            cell.source = f"# cell: {cell.id}\n" + _ORDERS.sub("# (taken out) ", hand_in.answers[cell.id])
        elif nbgrader.get("grade"):
            cell.source = re.sub(r"^check\((.*)\)$", rf"collect(\1, seed={seed})", cell.source)
        elif "setup" not in cell.metadata.get("tags", []):
            continue
        cells.append(cell)
    notebook.cells = cells
    return notebook

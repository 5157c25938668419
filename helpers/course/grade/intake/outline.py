"""What the notebook of an exercise looks like: enough to tell which exercise a submission is for, and find its answers.

Names of cells alone are not enough: several exercises have a cell called `step`. So the whole set of names counts, what
the answer cells define, the calls of checks, and the title.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from ...build.source import Source, checked_part
from .cells import Cell, defined_by
from .exercise_notebook import checks_of, has_placeholder, stubs_of, title_of


@dataclass(frozen=True)
class Outline:
    """The notebook of an exercise or a lab, as far as submissions are compared with it.

    Attributes:
        stubs: the text of each answer cell before anybody has answered.
        checks: names of the graded check cells.
        title: the first line of the notebook.
    """

    source: Source
    stubs: dict[str, str]
    checks: frozenset[str]
    title: str

    def likeness(self, cells: Sequence[Cell]) -> int:
        """Return how much `cells` look like this notebook; 0: not at all."""
        ids = {name for cell in cells for name in (cell.grade_id, *cell.ids)}
        score = len(ids & self.checks) + len(ids & self.stubs.keys())
        for name in self.stubs:
            score += 2 * any(cell.defines & defined_by(self.stubs[name]) for cell in self._cells_of(name, cells))
        score += 2 * any(self.title in cell.source.splitlines() for cell in cells if cell.kind == "markdown")
        return score + sum(_checks(self.source.exercise, cell) for cell in cells)

    def answers(self, cells: Sequence[Cell]) -> tuple[dict[str, str], list[str]]:
        """Return the answers in `cells`, by the name of their cell, and what a human should look at."""
        answers, flags = {}, []
        for name, stub in self.stubs.items():
            candidates = self._cells_of(name, cells)
            code = [cell for cell in candidates if cell.kind == "code"]
            flags += [f"{name}: is a {c.kind} cell, not code; not graded." for c in candidates if c not in code]
            flags += [f"{name}: {cell.oddity}." for cell in code if cell.oddity]
            worked = [cell for cell in code if cell.source.strip() != stub.strip()] or code[:1]
            if not candidates:
                flags.append(f"{name}: the answer cell is missing.")
            elif code and name not in (code[0].grade_id, *code[0].ids):
                numbers = ", ".join(str(cell.number) for cell in code[:5])
                flags.append(f"{name}: no cell has this name; taken from cell {numbers}, which defines the same names.")
            if _repeats(worked):
                flags.append(
                    f"{name}: appears in {len(worked)} cells; all were taken, in order, so the last one counts."
                )
            if worked:  # an answer cell that was split in several cells: all count, in order
                answers[name] = "\n".join(cell.source for cell in worked)
            if not worked or has_placeholder(answers[name]):
                flags += self._elsewhere(name, cells, candidates)
        return answers, flags

    def untouched(self, answers: dict[str, str]) -> bool:
        """Say whether nothing was answered."""
        return all(text.strip() == self.stubs[name].strip() for name, text in answers.items())

    def _cells_of(self, name: str, cells: Sequence[Cell]) -> list[Cell]:
        """Return the cells that hold the answer `name`: by grade id; else by another id; else by what they define."""
        known = self.stubs.keys() | self.checks
        by_grade_id = [cell for cell in cells if cell.grade_id == name]
        by_id = [cell for cell in cells if cell.grade_id not in known and name in cell.ids]
        definitions = defined_by(self.stubs[name])
        free = [cell for cell in cells if cell.kind == "code" and not known & {cell.grade_id, *cell.ids}]
        return by_grade_id or by_id or [cell for cell in free if cell.defines & definitions]

    def _elsewhere(self, name: str, cells: Sequence[Cell], taken: list[Cell]) -> list[str]:
        """Say which other cell defines what the answer `name`, which is not answered, should define."""
        definitions = defined_by(self.stubs[name])
        others = [c for c in cells if c.kind == "code" and c not in taken and c.defines & definitions]
        if not others:
            return []
        places = ", ".join(f"cell {cell.number}" for cell in others[:3])
        names = ", ".join(sorted(others[0].defines & definitions))
        return [f"{name}: not answered in its own cell, but {places} defines {names}; not graded."]


@cache
def outline(source: Source) -> Outline:
    """Return the outline of `source`."""
    return Outline(source, stubs_of(source), frozenset(checks_of(source)), title_of(source))


def _checks(exercise: str, cell: Cell) -> bool:
    return (checked_part(cell.source) or "").startswith(f"{exercise}.")


def _repeats(cells: list[Cell]) -> bool:
    """Say whether one of the pieces of an answer repeats another, instead of going on with it."""
    earlier: set[str] = set()
    for cell in cells:
        names = cell.defines or {cell.source.strip()}
        if names & earlier:
            return True
        earlier |= names
    return False

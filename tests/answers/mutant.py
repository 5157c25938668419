"""A wrong answer: the reference with some lines replaced, so that it changes with the reference or fails the tests."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "helpers" / "exercises" / "reference"


@cache
def reference_text(part: str) -> str:
    """Return the source of the reference answers to an exercise, or to that of a part, without importing them."""
    return (REFERENCE / f"{part.partition('.')[0]}.py").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Hunk:
    """Whole lines of an answer, and those that replace them."""

    place: str  # file and line, for errors
    old: str
    new: str

    def applied_to(self, text: str) -> str:
        """Return `text` with the new lines instead of the old ones, which must be there exactly once."""
        lines, old = f"\n{text}", f"\n{self.old}"  # so that only whole lines are found
        start = lines.find(old)
        if start < 0:
            raise ValueError(f"{self.place}: {self._missing(lines)}")
        if lines.find(old, start + 1) >= 0:
            raise ValueError(f"{self.place}: these lines are in the answer twice; add a line before or after them")
        return f"{lines[1 : start + 1]}{self.new}{lines[start + len(old) :]}"

    def _missing(self, lines: str) -> str:
        unknown = next((line for line in self.old.splitlines() if f"\n{line}\n" not in lines), None)
        return "these lines do not follow each other" if unknown is None else f"the answer has no line {unknown!r}"


@dataclass(frozen=True)
class Mutant:
    name: str
    part: str
    rejected_by: str
    hunks: tuple[Hunk, ...]
    says: str = ""  # words that the diagnosis must have: PyTorch's, where it refuses the mutant, or a mistake's name

    @property
    def topic(self) -> str:
        return self.part.partition(".")[0]

    def applied_to(self, text: str) -> str:
        """Return an answer, the reference's or a cell of it, with this mistake."""
        for hunk in self.hunks:
            text = hunk.applied_to(text)
        return text

    def source(self) -> str:
        """Return the text of the reference with this mistake."""
        return self.applied_to(reference_text(self.part))

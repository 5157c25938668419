"""Wrong answers, each with the check that must reject it, and right answers that must pass: one kind of file for each.

`wrong/x1/scaler.diff` holds the wrong answers to part x1.scaler, as diffs of the reference: `diffs.py` describes them.
`right/x1/NAME.py` is a module that answers all parts of X1. `right/x1/scaler/NAME.py` answers one part: it runs after
the text of the reference and replaces what it defines again. What it takes from the reference, it imports from there,
for editors and linters. The first line of such a file is a comment with the answer's name, which names the file, too.

Reading the answers does not import torch.
"""

import re
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from .diffs import mutants_of
from .mutant import Mutant, reference_text

RIGHT, WRONG = (Path(__file__).with_name(kind) for kind in ("right", "wrong"))
_FROM_REFERENCE = re.compile(r"^from helpers\.exercises\.reference\.\w+ import (\([^)]*\)|.*)\n", flags=re.MULTILINE)


@dataclass(frozen=True)
class Answers:
    """The answers to an exercise, read when they are asked for."""

    exercise: str

    @cached_property
    def mutants(self) -> list[Mutant]:
        """The wrong ones."""
        return [mutant for path in sorted((WRONG / self.exercise).glob("*.diff")) for mutant in mutants_of(path)]

    @cached_property
    def right(self) -> dict[str, str]:
        """The texts of answer modules, by the names of the answers."""
        return dict(map(read, sorted((RIGHT / self.exercise).glob("*.py"))))


@cache
def topics() -> dict[str, Answers]:
    """Return all answers, by the name of their exercise."""
    return {folder.name: Answers(folder.name) for folder in sorted(WRONG.iterdir())}


@cache
def styles(exercise: str) -> dict[str, tuple[str, str]]:
    """Return right answers to parts of an exercise, by name: the part, and the text of the whole answer module."""
    found = {}
    for path in sorted((RIGHT / exercise).glob("*/*.py")):
        name, text = read(path)
        own = _FROM_REFERENCE.sub("", text)
        found[name] = f"{exercise}.{path.parent.name}", f"{reference_text(exercise)}\n\n{own}"
    return found


def read(path: Path) -> tuple[str, str]:
    """Return the name of a right answer and its text."""
    text = path.read_text(encoding="utf-8")
    return text.partition("\n")[0].removeprefix("# "), text

"""Write everything that a run reports. Every file is written whole or not at all."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ....core.files import atomic_write
from ...build.source import Source, sources
from ..intake.exercise_notebook import solutions_of, stubs_of
from ..judge.result import Result
from ..store.conditions import Conditions
from .class_page import class_page
from .exports import junit, results_json
from .feedback import by_student, feedback, page_name
from .gradebook import gradebook
from .lms import canvas, moodle
from .resemblance import Pair, resembling_pairs
from .roster import Person


@dataclass
class Report:
    """The files of a run, in the folder `out`.

    Args:
        planned: how many hand-ins there are.
        roster: the students by folder; empty where there is none.
    """

    out: Path
    conditions: Conditions
    planned: int
    roster: Mapping[str, Person] = field(default_factory=dict)

    def update(self, results: list[Result], student: str) -> None:
        """Write the results so far: the gradebook and the page of `student`."""
        atomic_write(self.out / "gradebook.csv", gradebook(results, self.conditions))
        self._page(student, [r for r in results if r.student == student])

    def write(self, results: list[Result]) -> None:
        """Write everything.

        Hand-ins that resemble each other are flagged. That is no property of one hand-in, so it is not stored with it.
        """
        pairs = [pair for source in sources() if source.graded for pair in _pairs(source, results)]
        results = [replace(r, flags=[*r.flags, *_flags(r, pairs)]) for r in results]
        for student, theirs in by_student(results).items():
            self._page(student, theirs)
        files = {
            "gradebook.csv": gradebook(results, self.conditions),
            "canvas.csv": canvas(results, self.roster),
            "moodle.csv": moodle(results, self.roster),
            "results.json": results_json(results, self.conditions),
            "junit.xml": junit(results, self.conditions),
            "class.html": class_page(results, pairs, self.conditions, self.planned),
        }
        for name, text in files.items():
            atomic_write(self.out / name, text)

    def _page(self, student: str, results: list[Result]) -> None:
        folder = self.out / "feedback"
        folder.mkdir(exist_ok=True)
        atomic_write(folder / page_name(student), feedback(student, results, self.conditions))


def _pairs(source: Source, results: list[Result]) -> list[Pair]:
    hand_ins = [(r.student, r.answers) for r in results if r.exercise == source.exercise and r.answers]
    return resembling_pairs(source.exercise, hand_ins, stubs_of(source).values(), solutions_of(source).values())


def _flags(result: Result, pairs: list[Pair]) -> list[str]:
    mine = [p for p in pairs if p.exercise == result.exercise and result.student in (p.first, p.second)]
    others = [(p.second if p.first == result.student else p.first, p.share) for p in mine]
    flags = [f"resembles the published solution ({share:.0%})" for name, share in others if name is None]
    named = [f"{name} ({share:.0%})" for name, share in others if name is not None]
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return flags + ([f"resembles {', '.join(named[:3])}{more}"] if named else [])

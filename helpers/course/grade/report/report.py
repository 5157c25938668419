"""Write everything that a run reports. Every file is written whole or not at all."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ....core.files import atomic_write
from ...build.source import Source, sources
from ..intake.exercise_notebook import solutions_of, stubs_of
from ..judge.result import Result
from ..store.conditions import Conditions
from .audit import audit, audit_name
from .canvas_feedback import canvas_feedback
from .class_page import class_page
from .exports import junit, results_json, students_in
from .feedback import by_student, feedback, page_name
from .gradebook import gradebook
from .history import add_to_history
from .letter import letter
from .lms import canvas, moodle
from .moodle_feedback import moodle_feedback
from .policy import Policy
from .resemblance import Pair, resembling_pairs
from .roster import Person


@dataclass
class Report:
    """The files of a run, in the folder `out`.

    Args:
        planned: how many submissions there are.
        students: all whose submissions there are, graded or not; pages of others are removed. None removes none.
        roster: the students by folder; empty where there is none.
        policy: what checks are worth.
        names: what students are called on pages and in tables, by folder; who is not in it keeps the folder's name.
        sender: address that letters to students come from; None writes none.
    """

    out: Path
    conditions: Conditions
    planned: int
    roster: Mapping[str, Person] = field(default_factory=dict)
    policy: Policy = field(default_factory=Policy)
    names: Mapping[str, str] = field(default_factory=dict)
    sender: str | None = None
    students: Collection[str] | None = None

    def shown(self, result: Result) -> Result:
        """Return a result as people see it: with the points of the policy, under the student's name on pages."""
        return self.policy.applied(replace(result, student=self.name(result.student)))

    def name(self, student: str) -> str:
        """Return what a student is called on pages."""
        return self.names.get(student, student)

    def update(self, results: list[Result], student: str) -> None:
        """Write the results so far: the gradebook and the page of `student`."""
        shown = [self.shown(r) for r in results]
        atomic_write(self.out / "gradebook.csv", gradebook(shown, self.conditions))
        name = self.name(student)
        self._write("feedback", page_name(name), self._page(name, [r for r in shown if r.student == name]))

    def regraded(self, before: Result, now: Result) -> None:
        """Write down that an exercise was graded again, or that its student resubmitted it."""
        add_to_history(self.out / "history.csv", self.shown(before), self.shown(now), self.conditions)

    def write(self, results: list[Result]) -> None:
        """Write everything.

        Submissions that resemble each other are flagged. That is not a property of one of them, so it is not stored.
        """
        for_platforms = [self.policy.applied(r) for r in results]  # a platform has to know who is who
        shown = [self.shown(r) for r in results]
        pairs = [pair for source in sources() if source.graded for pair in _pairs(source, shown)]
        shown = [replace(r, flags=[*r.flags, *_flags(r, pairs)]) for r in shown]
        pages = {student: self._page(student, theirs) for student, theirs in by_student(shown).items()}
        for student, page in pages.items():
            self._write("feedback", page_name(student), page)
        for r in shown:
            if r.flags:
                self._write("audit", audit_name(r), audit(r, self.conditions, _alike(r, pairs)))
            else:
                (self.out / "audit" / audit_name(r)).unlink(missing_ok=True)
        self._remove_pages_of_the_absent()
        self._write_letters(by_student(for_platforms), pages)
        self._write_archives(for_platforms, pages)
        files = {
            "gradebook.csv": gradebook(shown, self.conditions),
            "canvas.csv": canvas(for_platforms, self.roster),
            "moodle.csv": moodle(for_platforms, self.roster),
            "results.json": results_json(shown, self.conditions),
            "junit.xml": junit(shown, self.conditions),
            "class.html": class_page(shown, pairs, self.conditions, self.planned),
        }
        for name, text in files.items():
            atomic_write(self.out / name, text)
        self._remove_named_pages()

    def _write_archives(self, results: list[Result], pages: Mapping[str, str]) -> None:
        """Write the feedback as learning platforms take it back, for those whose submissions came from there."""
        archives = {"moodle_feedback.zip": moodle_feedback({r.student: pages[self.name(r.student)] for r in results})}
        for exercise in dict.fromkeys(r.exercise for r in results):
            theirs = [r for r in results if r.exercise == exercise]
            archives[f"canvas_feedback_{exercise}.zip"] = canvas_feedback(theirs)
        for name, archive in archives.items():
            if archive:
                (self.out / name).write_bytes(archive)

    def _write_letters(self, results: Mapping[str, list[Result]], pages: Mapping[str, str]) -> None:
        for student, theirs in results.items():
            person = self.roster.get(student)
            if self.sender and person and person.email:
                text = letter(self.sender, person, theirs, pages[self.name(student)])
                self._write("letters", page_name(student).replace(".html", ".eml"), text)

    def _remove_pages_of_the_absent(self) -> None:
        """Remove what the last run wrote for students whose submissions are gone, or whose folder has a new name."""
        if self.students is None:
            return
        here = set(map(self.name, self.students))
        for student in students_in(self.out / "results.json") - here:
            page = page_name(student)
            audits = [f"audit/{source.exercise}-{page}" for source in sources() if source.graded]
            for name in (f"feedback/{page}", f"letters/{page.replace('.html', '.eml')}", *audits):
                (self.out / name).unlink(missing_ok=True)

    def _remove_named_pages(self) -> None:
        """Remove the pages that an earlier run wrote for those who have another name now."""
        for student in self.names:
            name = page_name(student)
            for page in [self.out / "feedback" / name, *self.out.glob(f"audit/*-{name}")]:
                page.unlink(missing_ok=True)

    def _page(self, student: str, results: list[Result]) -> str:
        return feedback(student, results, self.conditions)

    def _write(self, folder: str, name: str, text: str) -> None:
        (self.out / folder).mkdir(exist_ok=True)
        atomic_write(self.out / folder / name, text)


def _pairs(source: Source, results: list[Result]) -> list[Pair]:
    hand_ins = [(r.student, r.answers) for r in results if r.exercise == source.exercise and r.answers]
    return resembling_pairs(source.exercise, hand_ins, stubs_of(source).values(), solutions_of(source).values())


def _others(result: Result, pairs: list[Pair]) -> list[tuple[str | None, float]]:
    mine = [p for p in pairs if p.exercise == result.exercise and result.student in (p.first, p.second)]
    return [(p.second if p.first == result.student else p.first, p.share) for p in mine]


def _alike(result: Result, pairs: list[Pair]) -> list[str]:
    return [name for name, _ in _others(result, pairs) if name is not None]


def _flags(result: Result, pairs: list[Pair]) -> list[str]:
    others = _others(result, pairs)
    flags = [f"resembles the published solution ({share:.0%})" for name, share in others if name is None]
    named = [f"{name} ({share:.0%})" for name, share in others if name is not None]
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return flags + ([f"resembles {', '.join(named[:3])}{more}"] if named else [])

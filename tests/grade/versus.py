"""Our grader beside nbgrader and otter, on the same submissions: `make graders` writes the table into the docs.

A grade is called right if a part has all its points where all its checks are met, and not otherwise.
"""

import argparse
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from helpers.core.files import atomic_write
from helpers.course.build.front_page import DOCS, filled

from ..attacks import ATTACKS, REFERENCE
from ..mutants import topics
from .graders import PARTS, Case, Outcome, nbgraders, otters, ours

HOSTILE = (
    "patches_the_judge", "patches_the_probe", "imports_the_reference", "transforms_later_cells",
    "knows_the_constants_of_the_notebook_s_run", "swaps_a_function_s_body", "dies",
)  # fmt: skip


def cases() -> dict[str, Case]:
    """Return the submissions by student: right ones, wrong ones and hostile ones."""
    right = REFERENCE["x1"]
    found = {
        "right": Case(right, frozenset(PARTS)),
        "right_in_two_parts": Case({name: right[name] for name in ("scaler", "step")}, frozenset({"scaler", "step"})),
        "untouched": Case({}, frozenset()),
    }
    for part, check in (("x1.scaler", "scale_grows"), ("x1.step", "clips_true_gradient")):
        mutant = next(m for m in topics()["x1"].mutants if (m.part, m.rejected_by) == (part, check))
        cell = part.partition(".")[2]
        found[f"wrong_{check}"] = Case({cell: mutant.applied_to(right[cell])}, frozenset())
    for name in HOSTILE:
        attack = ATTACKS[name]
        found[name] = Case(attack.answers, frozenset({"scaler"} if attack.total == PARTS["scaler"] else ()))
    return found


def wrong(students: dict[str, Case], outcome: Outcome) -> list[str]:
    """Return the students whose grade is wrong or missing."""
    return [student for student, case in students.items() if outcome.given.get(student) != case.earned]


def table(students: dict[str, Case], outcomes: Mapping[str, Outcome]) -> str:
    """Return the outcomes, by grader, as Markdown."""
    count, ours_each = len(students), outcomes["ours"].processor
    rows = [
        ("", *outcomes),
        ("---", *["--:"] * len(outcomes)),
        (f"wrong grades (of {count})", *(len(wrong(students, outcome)) for outcome in outcomes.values())),
        ("processor seconds per submission", *(f"{outcome.processor / count:.1f}" for outcome in outcomes.values())),
        ("times as fast as ours", *(f"{ours_each / outcome.processor:.2f}" for outcome in outcomes.values())),
    ]
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    for name, outcome in outcomes.items():
        names = ", ".join(f"`{student}`" for student in wrong(students, outcome)) or "none"
        lines += ["", f"Wrong in {name}: {names}."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.grade.versus", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="STUDENT", help="these submissions alone; nothing is written")
    args = parser.parse_args()
    students = {name: case for name, case in cases().items() if not args.only or name in args.only}
    graders = {"ours": (ours, ())}
    for name, grader in (("nbgrader", nbgraders), ("otter", otters)):
        python = os.environ.get(f"{name.upper()}_PYTHON")
        if not python:
            parser.error(f"{name.upper()}_PYTHON names no Python with {name}: make graders sets it up.")
        graders[name] = grader, (Path(python),)
    outcomes: dict[str, Outcome] = {}
    for name, (grader, more) in graders.items():
        with tempfile.TemporaryDirectory() as folder:
            outcomes[name] = grader(students, Path(folder), *more)
        print(f"{name}: {outcomes[name]}", flush=True)
    text = table(students, outcomes)
    print(text)
    if not args.only:
        page = DOCS / "comparison.md"
        atomic_write(page, filled(page, graders=text))


if __name__ == "__main__":
    main()

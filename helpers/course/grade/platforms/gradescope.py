"""What Gradescope starts for each submission: read it, grade it, write results.json.

The layout is Gradescope's: submission/ holds the files, results/results.json is what it reads
(https://gradescope-autograders.readthedocs.io/en/latest/specs/).
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ..judge.result import Result
from ..options import GradeError
from .single import grade_single


def results_json(result: Result) -> dict[str, Any]:
    """Return a result in Gradescope's format: a test for each check, with what to look at where it was missed."""
    tests = [
        {
            "name": f"{v.check}: {v.rule}",
            "score": v.points,
            "max_score": v.max_points,
            "status": "passed" if v.passed else "failed",
            "output": "" if v.passed else f"{v.diagnosis}\n{v.hint}".rstrip(),
        }
        for v in result.verdicts
    ]
    flags = "\n".join(result.flags)
    for_instructors = [{"name": "Flags", "output": flags, "visibility": "hidden"}] if flags else []
    output = f"{result.status}: {result.reason}"
    return {"output": output, "execution_time": round(result.seconds), "tests": [*tests, *for_instructors]}


def main(argv: list[str] | None = None) -> int:
    """Grade the submission below --root. A fault of the grader's own is said on the page, without points."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--root", type=Path, default=Path("/autograder"), metavar="DIR")
    parser.add_argument("--exercise", required=True, metavar="NAME")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--timeout", type=float, default=120, metavar="S", help="seconds one cell may take")
    args = parser.parse_args(argv)
    try:
        found = results_json(grade_single(args.root / "submission", args.exercise, args.seed, args.timeout))
    except GradeError as error:
        found = {"output": f"The autograder could not run; tell your instructor. {error}", "score": 0, "tests": []}
    (args.root / "results").mkdir(exist_ok=True)
    (args.root / "results" / "results.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

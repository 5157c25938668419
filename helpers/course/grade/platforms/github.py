"""What the workflow of GitHub Classroom starts: grade the repository once, then say for each check whether it passed.

Classroom's command grader gives a step all of its points or none, so that each check is a step of its own.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from ..judge.result import Result
from ..options import GradeError
from .single import grade_single


def main(argv: list[str] | None = None) -> int:
    """Grade (--exercise, --seed), or look up one check (--check). Exit code 1: the check was missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kept", type=Path, required=True, metavar="JSON", help="where the result is kept")
    parser.add_argument("--folder", type=Path, default=Path(), metavar="DIR", help="the repository of the student")
    parser.add_argument("--exercise", metavar="NAME")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--timeout", type=float, default=120, metavar="S", help="seconds one cell may take")
    parser.add_argument("--check", metavar="NAME")
    args = parser.parse_args(argv)
    if args.check:
        return _say(args.kept, args.check)
    try:
        result = grade_single(args.folder, args.exercise, args.seed, args.timeout)
    except GradeError as error:
        print(error, file=sys.stderr)
        return 2
    args.kept.write_text(json.dumps(asdict(result)), encoding="utf-8")
    print(f"{result.exercise}: {result.total} of {result.maximum} points, {result.status}. {result.reason}")
    return 0


def _say(kept: Path, check: str) -> int:
    if not kept.exists():
        print("The previous step produced no grade: see its output.")
        return 1
    result = Result.from_json(json.loads(kept.read_text(encoding="utf-8")))
    verdict = next(v for v in result.verdicts if v.check == check)
    print(verdict.rule)
    if not verdict.passed:
        print(f"{verdict.diagnosis}\n{verdict.hint}".rstrip())
    return 0 if verdict.passed else 1


if __name__ == "__main__":
    sys.exit(main())

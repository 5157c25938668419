"""python -m helpers grade: the grader on the command line."""

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from rich.console import Console

from .options import GradeError, GradingOptions, cores, graded_sources


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command."""
    default = GradingOptions
    parser.add_argument("submissions", type=Path, metavar="SUBMISSIONS", help="a folder or a ZIP file per student")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where gradebook and pages go")
    parser.add_argument(
        "--exercise",
        nargs="+",
        default=(),
        metavar="X",
        help="the exercises that you assigned, such as x1 x2; default: all that were submitted",
    )
    parser.add_argument("--seed", type=int, help="seed of the inputs; default: that of the run in --out, or a new one")
    parser.add_argument(
        "--jobs", type=int, default=cores(), metavar="N", help="submissions graded at a time; default: one per core"
    )
    parser.add_argument(
        "--slice", type=_slice, default=default.slice, metavar="I/N", help="grade one of N parts of a large class"
    )
    parser.add_argument("--timeout", type=float, default=default.timeout, metavar="S", help="seconds one cell may take")
    parser.add_argument("--fresh", action="store_true", help="forget the results in --out and draw a new seed")
    parser.add_argument("--regrade", metavar="NAME", help="grade these students again (* and ? match), changed or not")
    parser.add_argument(
        "--roster", type=Path, metavar="CSV", help="names and ids of the students: columns folder, name, id, email"
    )
    parser.add_argument("--policy", type=Path, metavar="TOML", help="points of checks, and partial credit")
    parser.add_argument("--anonymous", action="store_true", help="use random names on pages and in tables")
    parser.add_argument("--email", metavar="FROM", help="write draft emails to the students on the roster")
    parser.add_argument("--watch", action="store_true", help="grade again after each new submission, until interrupted")


def _slice(text: str) -> tuple[int, int]:
    number, _, parts = text.partition("/")
    if not (number.isdecimal() and parts.isdecimal()):
        raise argparse.ArgumentTypeError(f"expected I/N, such as 2/4; got {text!r}")
    return int(number), int(parts)


def run(args: argparse.Namespace) -> int:
    """Grade. Returns the exit code: 0 fine, 2 bad input (the message is on standard error)."""
    if not args.submissions.is_dir():  # refused before imports that take seconds
        print(
            f"{args.submissions} is not a folder. Give the folder that contains one folder per student.",
            file=sys.stderr,
        )
        return 2
    options = {field.name: getattr(args, field.name) for field in fields(GradingOptions)}
    try:
        GradingOptions(**options).set_exercises(graded_sources())  # refused before imports that take seconds, too
        with Console(stderr=True).status("Loading PyTorch and nbval"):
            from .grading import grade

        grade(args.submissions, args.out, **options)
    except GradeError as error:
        print(error, file=sys.stderr)
        return 2
    return 0

"""python -m helpers autograder: the grader as a package for a platform."""

import argparse
import random
import sys
from pathlib import Path

from ..options import GradeError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command."""
    parser.add_argument("platform", choices=("gradescope", "github"))
    parser.add_argument("--exercise", required=True, metavar="NAME", help="the exercise, such as x2")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the package goes")
    parser.add_argument("--seed", type=int, help="seed of the checks' inputs, for all students; default: a fresh one")


def run(args: argparse.Namespace) -> int:
    """Write the package. Returns the exit code: 0 fine, 2 bad input (the message is on standard error)."""
    from .packages import github_workflow, gradescope_zip  # these import PyTorch

    write = {"gradescope": gradescope_zip, "github": github_workflow}[args.platform]
    seed = random.SystemRandom().randrange(2**31) if args.seed is None else args.seed
    try:
        print(f"{write(args.exercise, seed, args.out)} grades {args.exercise} with seed {seed}.")
    except GradeError as error:
        print(error, file=sys.stderr)
        return 2
    return 0

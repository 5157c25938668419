"""python -m helpers autograder: the grader as a package for a platform."""

import argparse
import random
import sys
from pathlib import Path

from ..options import GradeError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command."""
    parser.add_argument("platform", choices=("gradescope", "github"))
    parser.add_argument(
        "--exercise", required=True, nargs="+", metavar="X", help="the exercises, such as x1 x2: a package for each"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the package goes")
    parser.add_argument("--seed", type=int, help="seed of the checks' inputs, for all students; default: a fresh one")


def run(args: argparse.Namespace) -> int:
    """Write a package per exercise. Returns the exit code: 0 fine, 2 bad input (the message is on standard error)."""
    from .packages import exercise_source, github_workflow, gradescope_zip  # these import PyTorch

    write = {"gradescope": gradescope_zip, "github": github_workflow}[args.platform]
    seed = random.SystemRandom().randrange(2**31) if args.seed is None else args.seed
    exercises = list(dict.fromkeys(name.lower() for name in args.exercise))
    # On GitHub, each assignment has a template repository of its own, and the workflow has the same name in all.
    apart = args.platform == "github" and len(exercises) > 1
    try:
        for name in exercises:
            exercise_source(name)
        for name in exercises:
            print(f"{write(name, seed, args.out / name if apart else args.out)} grades {name} with seed {seed}.")
    except GradeError as error:
        print(error, file=sys.stderr)
        return 2
    return 0

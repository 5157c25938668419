"""python -m helpers handout --to FOLDER: a copy of the course for learners, without solved notebooks and tests."""

import argparse
import shutil
from pathlib import Path

from ..core.files import ROOT
from ..planner import RecipeError

GIVEN = (
    *("labs", "helpers", "docs", "README.md", "AGENTS.md", "LICENSE", "CITATION.cff", "Makefile"),
    *("pyproject.toml", "requirements.txt", "requirements-real.txt", "environment.yml"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    parser.add_argument("--to", required=True, type=Path, metavar="FOLDER", help="a folder that does not exist yet")


def run(args: argparse.Namespace) -> int:
    """Copy the course. Returns the exit code 0.

    Raises:
        RecipeError: the folder exists, or this is no checkout of the course.
    """
    if args.to.exists():
        raise RecipeError(f"{args.to} already exists; name a new folder.")
    if not (ROOT / "labs").is_dir():
        raise RecipeError("There are no labs next to this package: run the command in a checkout of the course.")
    args.to.mkdir(parents=True)
    for name in GIVEN:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, args.to / name, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"))
        else:
            shutil.copy2(source, args.to / name)
    print(f"{args.to} has the labs and what they need. Learners run `make lab` in it.")
    return 0

"""python -m helpers mistakes: what went wrong, over several classes."""

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command."""
    parser.add_argument("grades", type=Path, nargs="+", metavar="GRADES", help="folders that `grade --out` has written")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the pages go")


def run(args: argparse.Namespace) -> int:
    """Write the pages. Returns the exit code: 0 fine, 2 bad input (the message is on standard error)."""
    from .mistakes import MistakesError, write_mistakes  # imports PyTorch

    try:
        print(write_mistakes(args.grades, args.out))
    except MistakesError as error:
        print(error, file=sys.stderr)
        return 2
    return 0

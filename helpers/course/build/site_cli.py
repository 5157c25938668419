"""python -m helpers site: the solved labs as static pages."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command."""
    parser.add_argument("--out", type=Path, default=Path("build/site"), metavar="DIR", help="default: build/site")


def run(args: argparse.Namespace) -> int:
    """Write the pages and print where the index is. Returns the exit code 0."""
    from .site import make_site  # needs packages that a reader of the help may lack

    print(make_site(args.out))
    return 0

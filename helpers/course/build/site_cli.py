"""python -m helpers site: the solved labs as static pages."""

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command."""
    parser.add_argument("--out", type=Path, default=Path("build/site"), metavar="DIR", help="default: build/site")


def run(args: argparse.Namespace) -> int:
    """Write the pages and print where the index is. Returns the exit code: 0 fine, 2 no such folder can be."""
    from .site import make_site  # needs packages that a reader of the help may lack

    if args.out.exists() and not args.out.is_dir():
        print(f"{args.out} is a file; --out takes a folder.", file=sys.stderr)
        return 2
    print(make_site(args.out))
    return 0

"""python -m helpers build: from sources to notebooks."""

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="a source, or the beginning of its name; default: all")
    parser.add_argument("--check", action="store_true", help="build nothing; fail if a notebook is stale")
    parser.add_argument(
        "--shares", action="store_true", help="build nothing; show how much of each lab's code learners only read"
    )
    parser.add_argument("--rerun", action="store_true", help="also run solutions whose source has not changed")


def run(args: argparse.Namespace) -> int:
    """Build or check. Returns the exit code: 0 fine, 1 a notebook is stale, 2 a bad source or name."""
    from .build import BuildError, build, problems, select  # needs packages that a reader of the help may lack
    from .shares import shares_table

    try:
        if args.shares:
            print(shares_table([source for source in select(args.names) if not source.graded]))
            return 0
        if args.check:
            stale = problems(args.names)
            lines = [*stale, "Run: python -m helpers build"] if stale else ["All notebooks match their sources."]
            print("\n".join(lines))
            return 1 if stale else 0
        build(args.names, args.rerun)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 2
    return 0

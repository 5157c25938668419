"""python -m helpers receipts: measure everything on this machine."""

import argparse
import sys

from .collect import ReceiptsError, run_receipts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command."""
    names = "a step or a lab, or the beginning of its name: mixed_precision, 03; default: all"
    parser.add_argument("names", nargs="*", metavar="NAME", help=names)
    parser.add_argument("--device", choices=("cuda", "mps", "cpu"), help="default: the fastest on this machine")
    parser.add_argument("--fresh", action="store_true", help="also run what has not changed")
    parser.add_argument("--show", action="store_true", help="also show the output of the steps")


def run(args: argparse.Namespace) -> int:
    """Run the steps. Returns the exit code: 0 fine, 1 a step failed, 2 no such step or device."""
    try:
        return 1 if run_receipts(args.device, args.fresh, tuple(args.names), args.show) else 0
    except ReceiptsError as error:
        print(error, file=sys.stderr)
        return 2

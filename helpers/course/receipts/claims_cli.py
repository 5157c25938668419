"""python -m helpers claims: the table of claims."""

import argparse

from ...claims.receipt import receipts
from .table import claims_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the command has no options."""


def run(args: argparse.Namespace) -> int:
    """Print the table in Markdown. Returns the exit code 0."""
    print(claims_table(receipts()))
    return 0

"""python -m helpers plans | searches | chooser: the tables from which labs and figures answer at once, planned anew."""

import argparse

from ...planner import chooser
from ...planner.planned import plan_anew
from ...planner.search.searched import search_anew
from ...widgets import memory_calculator


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the commands have no options."""


def run(args: argparse.Namespace) -> int:
    """Write the tables of the command that was called. Returns the exit code 0."""
    if args.command == "chooser":
        chooser.write_table()
    elif args.command == "searches":
        search_anew()
    else:
        plan_anew()
        memory_calculator.write_table()
    return 0

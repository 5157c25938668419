"""`python -m helpers autopsy`: what a real GPU ran out of."""

import argparse
import json

from ...planner import RecipeError
from .findings import Report, of_message, of_snapshot
from .message import read_message
from .reader import read
from .snapshot import gpus_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    parser.add_argument(
        "file", metavar="FILE", help="a memory snapshot, or a text file with the message; - reads stdin"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    """Print what was found; return 0.

    Raises:
        RecipeError: the file is neither a snapshot nor a text with a message.
    """
    reports = reports_of(args.file)
    if args.json:
        print(json.dumps([report.to_json() for report in reports]))
    else:
        print("\n\n".join(map(str, reports)))
    return 0


def reports_of(path: str) -> list[Report]:
    """Return the reports on a file, one for each GPU.

    Raises:
        RecipeError: the file is neither a snapshot nor a text with a message.
    """
    found = read(path)
    if isinstance(found, str):
        message = read_message(found)
        if message is None:
            raise RecipeError(f"{path} has no out-of-memory message and is not a memory snapshot.")
        return [of_message(message)]
    try:
        gpus = gpus_of(found)
        reports = [of_snapshot(number, gpu) for number, gpu in gpus.items()]
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise RecipeError(f"{path} is not a memory snapshot that PyTorch writes: {error!r}.") from error
    if not reports:
        raise RecipeError(f"{path} is an empty snapshot: record with torch.cuda.memory._record_memory_history().")
    return reports

"""python -m helpers roofline: measure what this machine can do, and keep it."""

import argparse
import sys
from dataclasses import replace

import torch
from rich.console import Console
from rich.table import Table

from .core.device import pick_device
from .meter.roofline.kept import keep_roofline
from .meter.roofline.measured import measure_roofline
from .meter.roofline.rows import roofline_rows
from .meter.roofline.stopwatch import BUSY
from .ranks.failure import RankError
from .ranks.link import measure_link


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command."""
    parser.add_argument("--json", action="store_true", help="print JSON, which plan --rates reads on any machine")
    parser.add_argument("--device", choices=("cuda", "mps", "cpu"), help="default: the fastest on this machine")


def run(args: argparse.Namespace) -> int:
    """Measure, print and keep. Returns the exit code: 0 fine, 2 no such device."""
    device = torch.device(args.device) if args.device else pick_device()
    if device.type not in ("cpu", pick_device().type):
        print(f"This machine has no device {args.device}; it has {pick_device().type}.", file=sys.stderr)
        return 2
    console = Console()
    with Console(stderr=True).status("Measuring this machine: matmuls, memory, layers, messages"):
        roofline = measure_roofline(device)
        try:
            roofline = replace(roofline, link=measure_link())
        except RankError as error:  # no network between processes is no reason to lose the rest
            print(f"The process group was not measured: {str(error).splitlines()[0]}", file=sys.stderr)
    if args.json:
        print(roofline.to_json())
        keep_roofline(roofline)
        return 0
    table = Table(show_header=False, title=roofline.machine, title_justify="left")
    for row in roofline_rows(roofline):
        table.add_row(*row)
    console.print(table)
    if roofline.spread > BUSY:
        apart = f"the runs of one measurement differ by {roofline.spread:.0%}"
        console.print(f"The machine was busy: {apart}. Measure again when it is idle.")
    path = keep_roofline(roofline)
    console.print(f"Saved in {path}." if path else "Not saved, because TAS_PROGRESS is off.")
    return 0

"""python -m helpers gpu: run everything that wants a GPU, as far as the budget goes."""

import argparse
import contextlib
import fnmatch
import math
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import torch

from ...claims.receipt import FOLDER, Receipt, ReceiptError
from ...core.device import device_name
from ...core.files import ROOT
from .lane import Lane, LaneError
from .state import FAILED, LaneState
from .steps import LaneStep, lane_steps
from .summary import summary

AGAIN = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command."""
    parser.add_argument("--list", action="store_true", help="print the steps and how they ended, and run nothing")
    parser.add_argument("--only", metavar="PATTERN", help="steps whose names match, such as 'tests/*' or 'labs/fp8'")
    parser.add_argument("--again", action="store_true", help="also repeat finished steps")
    parser.add_argument("--limit", type=float, default=540, metavar="SECONDS", help="seconds per step; default: 540")
    parser.add_argument(
        "--budget",
        type=float,
        default=math.inf,
        metavar="SECONDS",
        help="start no step after this many seconds; exit code 3 if any is left",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu", metavar="DIR", help="default: build/gpu")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu only tries out the command")


def run(args: argparse.Namespace) -> int:
    """Run the steps. Returns 0 fine, 1 a step failed, 2 no such step or no GPU, 3 the budget was spent: call again."""
    try:
        steps = _chosen(args)
        device = _device(args.device)
    except LaneError as error:
        print(error, file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    state = LaneState.read(args.out / "state.json", f"{device_name(device)}, PyTorch {torch.__version__}")
    if args.list:
        for step in steps:
            print(f"{state.status(step.name, step.digest) or '-':<12} {step.name}")
        return 0
    if args.again:
        state.forget(step.name for step in steps)
    log = args.out / "log.txt"
    with _ended_in_order():
        all_tried = Lane(steps, state, log, args.device, args.limit, args.budget).run()
    said = summary(steps, state, _receipt(device))
    with log.open("a", encoding="utf-8") as file:
        file.write(f"\n=== summary\n{said}\n")
    print(f"\n{said}\nWhat the steps printed: {log}")
    if not all_tried:
        print("The budget is spent and steps are left: run the same command again.")
        return AGAIN
    return int(any(state.status(step.name, step.digest) == FAILED for step in steps))


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let a signal to terminate end the step that is running, too; it would live on with the GPU's memory."""

    def leave(number: int, frame: object) -> NoReturn:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _chosen(args: argparse.Namespace) -> list[LaneStep]:
    steps = lane_steps(args.device, args.again)
    chosen = [step for step in steps if not args.only or fnmatch.fnmatch(step.name, args.only)]
    if not chosen:
        raise LaneError(f"No step matches {args.only!r}: --list shows them all.")
    return chosen


def _device(kind: str) -> torch.device:
    if kind == "cuda" and not torch.cuda.is_available():
        raise LaneError("PyTorch sees no NVIDIA GPU here. To try the command without one: --device cpu")
    return torch.device(kind)


def _receipt(device: torch.device) -> Receipt | None:
    try:
        return Receipt.read(FOLDER / Receipt(device_name(device), device.type).path)
    except (OSError, ReceiptError):
        return None

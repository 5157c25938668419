"""`python -m helpers dry-run`: run a training script on a GPU that is not there."""

import argparse
import json
import os
import runpy
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ..planner import RecipeError
from ..planner.catalog.gpus import find_gpu
from .absent.models import AbsentError
from .context import virtual_gpu
from .dry_run import DryRun, short
from .script_file import check_script
from .script_patches import for_scripts
from .spawned import not_followed
from .steps import EnoughStepsError
from .user_line import is_inside
from .waits import ValueWithoutDataError
from .world import World
from .written import write_snapshot, write_trace

_GPU = "h100-80gb"  # where none is named
_NO_NETWORK = {  # errors of urllib, requests, aiohttp, httpx and huggingface_hub
    *("URLError", "gaierror", "ConnectionError", "ClientConnectorError", "ConnectError"),
    *("OfflineModeIsEnabled", "LocalEntryNotFoundError"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    parser.add_argument(
        "--gpu", help=f"a GPU from the catalog, such as rtx-4090 (default: {_GPU}); `plan --list` shows all"
    )
    parser.add_argument("--gpus", type=int, default=1, help="GPUs per node, with one rank each (default: 1)")
    parser.add_argument("--nodes", type=int, default=1, help="nodes of a torchrun program (default: 1)")
    parser.add_argument("--rank", type=int, default=0, help="the one rank that runs (default: 0)")
    parser.add_argument("--torchrun", action="store_true", help="run as under `torchrun --nproc-per-node 1`")
    parser.add_argument("--steps", type=int, default=3, help="end after this many optimizer steps (default: 3)")
    parser.add_argument(
        "--strict", action="store_true", help="stop where the script reads a value that a dry run cannot know"
    )
    parser.add_argument("--fake-data", action="store_true", help="make up data sets that are not on this machine")
    parser.add_argument("--json", action="store_true", help="print the report as JSON, after the script's own output")
    parser.add_argument("--timeline", metavar="FILE", help="draw memory by category over the run (.svg, .png, .pdf)")
    parser.add_argument("--snapshot", metavar="FILE", help="write a file for pytorch.org/memory_viz")
    parser.add_argument("--trace", metavar="FILE", help="write a trace for Perfetto")
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module, as in python -m")
    parser.add_argument("script", metavar="SCRIPT", help="the training script")
    own = parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="the script's own arguments, after its name"
    )
    own.required = False  # argparse would ask for them where the script is missing


def run(args: argparse.Namespace) -> int:
    """Run the script and print the report. Returns 0, 2 for bad input, or the script's own exit code."""
    if args.steps < 1 or args.gpus < 1 or args.nodes < 1:
        raise RecipeError("--steps, --gpus and --nodes must be at least 1.")
    ranks = args.gpus * args.nodes
    if not 0 <= args.rank < ranks:
        raise RecipeError(f"--rank {args.rank} is not one of {ranks} ranks, which count from 0.")
    world = World(args.rank, ranks, args.gpus) if ranks > 1 or args.torchrun else None
    args.assumed, args.gpu = not args.gpu, args.gpu or _GPU
    find_gpu(args.gpu)
    _check_files(args)
    check_script(args.script, args.module)
    _warn_of_misplaced(args)
    process = os.getpid()
    with virtual_gpu(args.gpu, gpus=args.gpus, steps=args.steps, strict=args.strict, world=world) as dry:
        code = _run_script(args, dry)
        if os.getpid() != process:  # the script has forked: the first process alone reports
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    if code == 2 and not dry.ledger.events:
        return code
    sys.stdout.flush()
    _write(args, dry)
    if args.json:
        print(json.dumps(dry.to_json() if dry.ledger.events else {"gpu": dry.gpu, "steps": []}))
    else:
        print(f"\n{dry}")
        if args.assumed:
            print(f"\nNo --gpu was given, so {dry.gpu} is assumed.")
    if dry.ledger.marks and dry.ledger.events:
        return code
    words = [f"{args.script} ended without an optimizer step on the GPU."] if code == 0 else []
    if line := not_followed(dry.waits):
        words.append(f"A dry run does not follow the process that it starts at {short(line)}: run what that runs.")
    print(*words, sep=" ", end="\n" if words else "", file=sys.stderr)
    return code or 2


def _warn_of_misplaced(args: argparse.Namespace) -> None:
    """Say which of the script's arguments are also options of this command: they may be meant for it."""
    own = argparse.ArgumentParser(add_help=False)
    add_arguments(own)
    given = dict.fromkeys(word.partition("=")[0] for word in args.arguments)
    names = [name for name in given if name.startswith("--") and name in own._option_string_actions]
    if names:
        goes, them = ("goes", "it") if len(names) == 1 else ("go", "them")
        print(
            f"Warning: {', '.join(names)} after {args.script} {goes} to the script. "
            f"If you meant the dry run, put {them} before {args.script}.",
            file=sys.stderr,
        )


def _write(args: argparse.Namespace, dry: DryRun) -> None:
    """Write the files that were asked for."""
    if not dry.ledger.events:
        return
    if args.timeline:
        dry.plot().savefig(args.timeline)
    if args.snapshot:
        write_snapshot(args.snapshot, dry.ledger)
    if args.trace:
        write_trace(args.trace, dry.ledger, dry.index)


def _check_files(args: argparse.Namespace) -> None:
    """Refuse files that cannot be written before the script runs.

    Raises:
        RecipeError: there is no such folder, or a picture in a format that is not drawn.
    """
    for name in filter(None, (args.timeline, args.snapshot, args.trace)):
        if not Path(name).resolve().parent.is_dir():
            raise RecipeError(f"{Path(name).parent} is not a folder: {name} cannot be written.")
    if args.timeline and Path(args.timeline).suffix not in (".svg", ".png", ".pdf"):
        raise RecipeError(f"--timeline writes .svg, .png and .pdf, not {args.timeline}.")


def _run_script(args: argparse.Namespace, dry: DryRun) -> int:
    """Run the script as Python would; return its exit code."""
    try:
        with _as_script(args), for_scripts(dry.waits, dry.world, fake_data=args.fake_data):
            if args.module:
                runpy.run_module(args.script, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(args.script, run_name="__main__")
    except EnoughStepsError:
        return 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except (ValueWithoutDataError, AbsentError) as error:
        print(error, file=sys.stderr)
        return 2
    except ImportError as error:
        if args.module and error.name in (None, args.script, args.script.partition(".")[0]):
            print(f"{args.script} is not a module: {error}", file=sys.stderr)
            return 2
        _print_traceback(error)
        return 1
    except Exception as error:
        _print_traceback(error)
        _explain_network(error)
        return 1
    return 0


@contextmanager
def _as_script(args: argparse.Namespace) -> Iterator[None]:
    """Let the script find its arguments, and the modules beside it."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = [args.script, *args.arguments]
    sys.path[0] = os.getcwd() if args.module else str(Path(args.script).resolve().parent)
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


def _explain_network(error: BaseException | None) -> None:
    """Add a line where the script ended because it could not download something."""
    while error is not None:
        names = {kind.__name__ for kind in type(error).__mro__}
        if isinstance(error, OSError | RuntimeError) and names & _NO_NETWORK:
            print(
                "\nThe script asked a host for something, and this machine cannot reach it. Put the files where the "
                "script looks for them, or name some that are here.",
                file=sys.stderr,
            )
            return
        error = error.__cause__ or error.__context__


def _print_traceback(error: BaseException) -> None:
    """Print the script's own traceback, and those of its causes, without the lines of the dry run in between."""
    if error.__cause__ is not None:
        _print_traceback(error.__cause__)
        print("\nThe above exception was the direct cause of the following exception:\n", file=sys.stderr)
    here = str(Path(__file__).parent)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((here, "<frozen runpy>")) and "torch/overrides" not in frame.filename
    ]
    if isinstance(error, torch.OutOfMemoryError):  # where PyTorch asked says less than who called it
        frames = [frame for frame in frames if not is_inside(frame.filename)] or frames
    print("Traceback (most recent call last):", file=sys.stderr)
    print("".join(traceback.format_list(frames)), end="", file=sys.stderr)
    print("".join(traceback.format_exception_only(type(error), error)), end="", file=sys.stderr)
    if isinstance(error, torch.OutOfMemoryError):
        print(file=sys.stderr)

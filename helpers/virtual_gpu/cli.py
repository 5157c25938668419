"""`python -m helpers dry-run`: run a training script on a GPU that is not there."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TextIO

from ..planner import RecipeError
from ..planner.catalog.gpus import find_gpu
from .context import virtual_gpu
from .dry_run import DryRun, short
from .install import uninstall
from .script_end import ScriptEnd
from .script_file import check_script
from .script_run import run_script
from .spawned import not_followed
from .world import World
from .written import write_snapshot, write_trace

_GPU = "h100-80gb"  # where none is named
_FILES = ("timeline", "snapshot", "trace")


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
    parser.add_argument("script", metavar="SCRIPT", help="the training script; - reads it from stdin")
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
    files = {name: Path(path).resolve() for name in _FILES if (path := getattr(args, name))}
    streams = sys.stdout, sys.stderr
    with virtual_gpu(args.gpu, gpus=args.gpus, steps=args.steps, strict=args.strict, world=world) as dry:

        def report(code: int) -> int:
            sys.stdout, sys.stderr = map(
                _open_again, streams, (1, 2)
            )  # the script may have put its own in their places
            sys.stdout.flush()
            return _report(args, dry, code, files)

        def ended_inside(code: int) -> int:
            dry.close()
            uninstall()
            return report(code)

        process, end = os.getpid(), ScriptEnd(ended_inside)
        dry.ignored = end.at_once
        code, whole = run_script(args, dry, end)
        if os.getpid() != process:  # the script has forked: the first process alone reports
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    code = report(code)
    return code if whole else end.without_leftovers(code)


def _open_again(stream: TextIO, number: int) -> TextIO:
    """Return a stream that the script has not closed: this one, or a new one to the same place."""
    return open(number, "w", encoding="utf-8", closefd=False) if stream.closed else stream


def _report(args: argparse.Namespace, dry: DryRun, code: int, files: dict[str, Path]) -> int:
    """Print the report and write the files. Returns the exit code of this command for that of the script."""
    if code == 2 and not dry.ledger.events:
        return code
    dry.caught = code == 0 and dry.ledger.ran_out
    dry.stopped_early = code != 0 and not dry.ledger.marks and not dry.ledger.refusals
    if args.json:
        print(json.dumps(dry.to_json() if dry.ledger.events else {"gpu": dry.gpu, "steps": []}))
    else:
        print(f"\n{dry}")
        if args.assumed:
            print(f"\nNo --gpu was given, so {dry.gpu} is assumed.")
    written = _write(dry, files)
    if dry.ledger.marks and dry.ledger.events:
        return code if written else code or 2
    how = "caught an out-of-memory error and ended" if dry.caught else "ended"
    words = [f"{args.script} {how} without an optimizer step on the GPU."] if code == 0 else []
    if line := not_followed(dry.waits):
        words.append(f"The script starts a process at {short(line)}, which a dry run does not follow: dry-run that.")
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


def _write(dry: DryRun, files: dict[str, Path]) -> bool:
    """Write the files that were asked for; say in a line which one cannot be written, and return whether all were."""
    writes = {
        "timeline": lambda path: dry.plot().savefig(path),
        "snapshot": lambda path: write_snapshot(path, dry.ledger),
        "trace": lambda path: write_trace(path, dry.ledger, dry.index),
    }
    try:
        for name, path in files.items() if dry.ledger.events else ():
            writes[name](path)
    except OSError as error:
        print(f"{path} cannot be written: {error.strerror}.", file=sys.stderr)
        return False
    return True


def _check_files(args: argparse.Namespace) -> None:
    """Refuse files that cannot be written before the script runs.

    Raises:
        RecipeError: there is no such folder, it is a folder itself, it may not be written, it is the script or named
            twice, or it is a picture in a format that is not drawn.
    """
    names = list(filter(None, (getattr(args, name) for name in _FILES)))
    for name in names:
        path = Path(name).resolve()
        if not args.module and path == Path(args.script).resolve():
            raise RecipeError(f"{name} is the script: it would be overwritten. Give the name of another file.")
        if [Path(other).resolve() for other in names].count(path) > 1:
            raise RecipeError(f"{name} is named twice. Each option writes a file of its own.")
        if not path.parent.is_dir():
            raise RecipeError(f"{Path(name).parent} is not a folder: {name} cannot be written.")
        if path.is_dir():
            raise RecipeError(f"{name} is a folder. Give the name of a file.")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise RecipeError(f"{name} cannot be written: permission denied.")
    if args.timeline and Path(args.timeline).suffix.lower() not in (".svg", ".png", ".pdf"):
        raise RecipeError(f"--timeline writes .svg, .png and .pdf, not {args.timeline}.")

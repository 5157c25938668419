"""Runs a training script as Python would, until it ends or has taken enough steps, and prints its errors."""

import argparse
import linecache
import os
import runpy
import sys
import traceback
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from .absent.models import AbsentError
from .dry_run import DryRun, short
from .script_end import ScriptEnd
from .script_patches import for_scripts
from .steps import EnoughStepsError
from .user_line import is_inside, is_user_file
from .waits import ValueWithoutDataError

_NO_NETWORK = {  # errors of urllib, requests, aiohttp, httpx and huggingface_hub
    *("URLError", "gaierror", "ConnectionError", "ClientConnectorError", "ConnectError"),
    *("OfflineModeIsEnabled", "LocalEntryNotFoundError"),
}


def run_script(args: argparse.Namespace, dry: DryRun, end: ScriptEnd) -> tuple[int, bool]:
    """Run the script as Python would.

    Args:
        args: "script", "arguments", "module" and "fake_data" of the command line.
        dry: takes note of what is left out.
        end: is installed while the script runs.

    Returns:
        Its exit code, and whether it came to its own end.
    """
    try:
        with _as_script(args), for_scripts(dry.waits, end, dry.world, fake_data=args.fake_data):
            if args.module:
                runpy.run_module(args.script, run_name="__main__", alter_sys=True)
            elif args.script == "-":
                _run_text(sys.stdin.read())
            else:
                runpy.run_path(args.script, run_name="__main__")
    except BaseException as error:
        return _code_of(error, args), False
    return 0, True


def _code_of(error: BaseException, args: argparse.Namespace) -> int:
    """Print what the script ended with, unless it has taken enough steps; return the exit code."""
    if isinstance(error, EnoughStepsError):
        return 0
    if isinstance(error, SystemExit):
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, KeyboardInterrupt):
        lines = [frame for frame in traceback.extract_tb(error.__traceback__) if is_user_file(frame.filename)]
        where = f" at {short(f'{lines[-1].filename}:{lines[-1].lineno}')}" if lines else ""
        print(f"Interrupted{where}.", file=sys.stderr)
        return 130
    if isinstance(error, ValueWithoutDataError | AbsentError):
        print(error, file=sys.stderr)
        return 2
    own = args.script, args.script.partition(".")[0], None
    if isinstance(error, ImportError) and args.module and error.name in own:
        print(f"{args.script} is not a module: {error}", file=sys.stderr)
        return 2
    _print_traceback(error)
    _explain_network(error)
    _explain_missing(error, args.fake_data)
    return 1


def _run_text(text: str) -> None:
    """Run a script that has no file."""
    before, module = sys.modules["__main__"], types.ModuleType("__main__")
    sys.modules["__main__"] = module
    linecache.cache["<stdin>"] = len(text), None, text.splitlines(keepends=True), "<stdin>"
    try:
        exec(compile(text, "<stdin>", "exec"), vars(module))
    finally:
        sys.modules["__main__"] = before
        linecache.cache.pop("<stdin>", None)


@contextmanager
def _as_script(args: argparse.Namespace) -> Iterator[None]:
    """Let the script find its arguments, and the modules beside it."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = [args.script, *args.arguments]
    here = args.module or args.script == "-"
    sys.path[0] = os.getcwd() if here else str(Path(args.script).resolve().parent)
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


def _explain_network(error: BaseException | None) -> None:
    """Add a line where the script ended because it could not download something."""
    while error is not None:
        names = {kind.__name__ for kind in type(error).__mro__}
        if isinstance(error, OSError | RuntimeError) and names & _NO_NETWORK and "BrokenPipeError" not in names:
            print(
                "\nThe script asked a host for something, and this machine cannot reach it. Put the files where the "
                "script looks for them, or name some that are here.",
                file=sys.stderr,
            )
            return
        error = error.__cause__ or error.__context__


def _explain_missing(error: BaseException, made_up: bool) -> None:
    """Add a line where the script lacks a package, a file or its ranks, and it can be told what to do.

    Args:
        error: ended the script.
        made_up: whether data sets are made up already.
    """
    if isinstance(error, ModuleNotFoundError) and error.name:
        package, version = error.name.partition(".")[0], torch.__version__
        print(
            f"\nThe script runs in this Python, which does not have {package}. Install the package that has it, for "
            f"example: {sys.executable} -m pip install {package} torch=={version.partition('+')[0]}\n"
            "The last word keeps this PyTorch. A package with operators of its own, such as torchvision, must have "
            f"been built for PyTorch {version}.",
            file=sys.stderr,
        )
    elif "variable RANK expected" in str(error) or (isinstance(error, KeyError) and error.args == ("RANK",)):
        print("\nThe script expects torchrun: use --torchrun for one rank, or --gpus for several.", file=sys.stderr)
    elif isinstance(error, FileNotFoundError) and not made_up:
        print("\nIf a data set is missing, put --fake-data before the script to have it made up.", file=sys.stderr)


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

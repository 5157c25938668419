"""The command line: `python -m helpers COMMAND`, or `training-at-scale COMMAND`.

Each command is a module with two functions: `add_arguments(parser)` describes its options and `run(args)` runs it and
returns the exit code. Only the module of the command that was asked for is imported.
"""

import argparse
import difflib
import gc
import io
import sys
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from .core.program import program
from .planner import RecipeError
from .planner.other_words import option_meant, value_meant

try:
    from rich.console import Console
except ModuleNotFoundError:  # another Python than the one that `make` has set up
    own = r".venv\Scripts\python" if sys.platform == "win32" else ".venv/bin/python"
    print(
        f"{sys.executable} does not have the course's packages. In the course's folder, after `make setup`, `make lab` "
        f"or `make test`, use the course's own Python: {own} -m helpers ...",
        file=sys.stderr,
    )
    sys.exit(2)


class Command(NamedTuple):
    """A command of the command line: the module that runs it, and its line in the help."""

    module: str
    help: str


COMMANDS = {
    "doctor": Command(".doctor", "check what this machine can do, and show how to get what is missing"),
    "progress": Command(".claims.progress_page", "open a page with what you have predicted, measured and solved"),
    "plan": Command(".planner.cli", "predict how much memory a training recipe needs and how long a step takes"),
    "page": Command(".page.cli", "open the planner as a page in the browser: one GPU, or many"),
    "layout": Command(".planner.search.cli", "search for the best layout of a model on many GPUs"),
    "dry-run": Command(
        ".virtual_gpu.cli", "run a training script without a GPU; show how much memory it needs, and for what"
    ),
    "autopsy": Command(
        ".virtual_gpu.autopsy.cli", "find out what filled a real GPU, from a snapshot or an error message"
    ),
    "roofline": Command(".roofline_cli", "measure how fast this machine multiplies matrices and moves bytes"),
    "claims": Command(
        ".course.receipts.claims_cli", "print what is claimed about the techniques, and what was measured"
    ),
    "grade": Command(".course.grade.cli", "grade a folder of submissions, one folder per student"),
    "mistakes": Command(
        ".course.grade.report.mistakes_cli",
        "count the mistakes in one or more classes, and write a page about each mistake",
    ),
    "autograder": Command(".course.grade.platforms.cli", "package the grader of an exercise for Gradescope or GitHub"),
    "handout": Command(".course.handout", "copy the course for learners, without solved notebooks or tests"),
    "build": Command(".course.build.cli", "build the notebooks from their sources"),
    "site": Command(".course.build.site_cli", "render the solved labs as static pages with an index and a search box"),
    "receipts": Command(
        ".course.receipts.cli", "run every lab and measurement here and save the figures (about a quarter of an hour)"
    ),
    "gpu": Command(
        ".course.gpu_lane.cli", "run everything that needs an NVIDIA GPU; an interrupted run can be resumed"
    ),
    "plans": Command(".course.build.tables_cli", "recompute all stored plans that the labs use (half an hour)"),
    "searches": Command(".course.build.tables_cli", "recompute all stored layout searches that the labs use (an hour)"),
    "chooser": Command(
        ".course.build.tables_cli", "recompute the table behind the recipe chooser of the labs (a few minutes)"
    ),
}
GROUPS = {"learners, and anyone who trains models": "doctor", "instructors": "grade", "authors of the course": "build"}
"""For whom the commands from this one on are."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, where argparse would print the usage first."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{message.rstrip('.')}{'' if message[-1] == '?' else '.'} Help: {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Name the choice that may have been meant, too."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            option = next(iter(action.option_strings), "")
            meant = value_meant(str(value), option, list(action.choices)) if option else ""
            words = f"; did you mean {meant}?" if meant else ""
            raise argparse.ArgumentError(action, error.message + words) from None


def _help(prog: str) -> str:
    """Return the help: every command with a line, under those whom it is for."""
    lines = [f"usage: {prog} COMMAND ...", "", "Training at Scale, a lab workbook."]
    for name, command in COMMANDS.items():
        lines += [f"\nfor {whom}:" for whom, first in GROUPS.items() if first == name]
        lines.append(f"  {name:<12}{command.help}")
    return "\n".join([*lines, "", f"{prog} COMMAND --help shows the options of a command.", ""])


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = _Parser(prog=program())
    parser.format_help = lambda: _help(parser.prog)  # type: ignore[method-assign]
    if not argv:
        parser.exit(2, parser.format_help())
    if argv[0] not in COMMANDS and not argv[0].startswith("-"):
        near = difflib.get_close_matches(argv[0], COMMANDS, 1)
        parser.error(f"There is no command {argv[0]!r}" + (f": did you mean {near[0]}?" if near else "."))
    parsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    asked = parser
    for name, command in COMMANDS.items():
        command_parser = parsers.add_parser(name, help=command.help, description=_sentence(command.help))
        if name in argv[:1]:
            asked = command_parser
            _module(name).add_arguments(command_parser)
    args, unknown = parser.parse_known_args(argv)
    if unknown:  # the help of the command lists its options
        own = "the script's own options follow its name" if argv[0] == "dry-run" else ""
        if argv[0] == "plan":
            shown = [a for a in asked._actions if a.help != argparse.SUPPRESS]
            own = option_meant(unknown, argv[1:], [name for a in shown for name in a.option_strings])
        asked.error(f"unrecognized arguments: {' '.join(unknown)}{own and '; '}{own}")
    return args


def _module(command: str) -> ModuleType:
    """Import the module of a command. Most import PyTorch, which takes seconds: a terminal shows that it goes on."""
    with Console(stderr=True).status(f"Loading the command {command}"):
        return import_module(COMMANDS[command].module, __package__)


def main(argv: list[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0 fine, 1 a problem was found, 2 bad input, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):  # names in any script, on consoles that cannot show them all
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        args = _parse(sys.argv[1:] if argv is None else argv)
        return _module(args.command).run(args)
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or "Interrupted.", file=sys.stderr)
        return 130
    except RecipeError as error:
        return _fail(str(error))
    except ModuleNotFoundError as error:  # building and grading need more than the labs do
        return _fail(f"This command needs the package {error.name}: python -m pip install {error.name}")
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _fail(message: str) -> int:
    print(message, file=sys.stderr)
    return 2


if __name__ == "__main__":
    status = main()
    gc.freeze()  # else the interpreter scans all that was imported before it ends, which takes a second after PyTorch
    sys.exit(status)

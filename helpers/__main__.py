"""The command line: python -m helpers doctor | plan | build | plans | chooser | grade | claims | receipts | site."""

import argparse
import io
import sys
from pathlib import Path
from typing import NoReturn


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, where argparse would print the usage first."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{message}. Help: {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m helpers", description="Training at Scale, a lab workbook.")
    commands = parser.add_subparsers(
        dest="command",
        required=True,
        metavar="doctor | plan | build | plans | chooser | grade | claims | receipts | site",
    )

    commands.add_parser("doctor", help="say what this machine can do, what is missing and how to get it")

    from .planner.cli import add_arguments

    add_arguments(commands.add_parser("plan", help="say how much memory a training recipe needs, and where"))

    build = commands.add_parser("build", help="build the notebooks from their sources")
    build.add_argument("names", nargs="*", metavar="NAME", help="a source, or the beginning of its name; default: all")
    build.add_argument("--check", action="store_true", help="build nothing; fail when a notebook is stale")
    build.add_argument("--rerun", action="store_true", help="run solutions again whose source has not changed")

    commands.add_parser("plans", help="make all plans anew that the labs keep (half an hour)")
    commands.add_parser("chooser", help="plan what the recipe chooser of lab 15 answers from (minutes)")

    grade = commands.add_parser("grade", help="grade a folder of hand-ins, one folder a student")
    grade.add_argument("submissions", type=Path, metavar="SUBMISSIONS")
    grade.add_argument("--out", type=Path, required=True, metavar="DIR", help="where gradebook and pages go")
    grade.add_argument("--seed", type=int, help="repeat a run; default: that of the run in --out, or a fresh one")
    grade.add_argument("--jobs", type=int, default=1, metavar="N", help="hand-ins graded at a time")
    grade.add_argument("--timeout", type=float, default=120, metavar="S", help="seconds one cell may take")
    grade.add_argument("--fresh", action="store_true", help="forget the results in --out and draw a new seed")
    grade.add_argument("--regrade", metavar="NAME", help="run these students again (* and ? match), changed or not")
    grade.add_argument("--roster", type=Path, metavar="CSV", help="who is who: columns folder, name, id, email")

    commands.add_parser("claims", help="print what is said of the techniques, and what the receipts say of it")

    receipts = commands.add_parser("receipts", help="run every lab and measurement here and keep the figures (minutes)")
    receipts.add_argument("names", nargs="*", metavar="NAME", help="a step, or the beginning of its name; default: all")
    receipts.add_argument("--device", choices=("cuda", "mps", "cpu"), help="default: the fastest of this machine")
    receipts.add_argument("--quick", action="store_true", help="under ten minutes on a big GPU: fewer labs")
    receipts.add_argument("--fresh", action="store_true", help="run again what has not changed, too")

    site = commands.add_parser("site", help="render the solved labs as static pages with an index and a search")
    site.add_argument("--out", type=Path, default=Path("build/site"), metavar="DIR", help="default: build/site")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0 fine, 1 something to mend was found, 2 bad input, 130 interrupted."""
    args = _parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):  # names in any script, on consoles that cannot show them all
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        return _run(args)
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or "Interrupted.", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:  # building and grading need more than the labs do
        return _fail(f"This command needs the package {error.name}: python -m pip install {error.name}")
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _run(args: argparse.Namespace) -> int:
    if args.command == "doctor":
        from .doctor import examine

        return examine()
    if args.command == "plan":
        from .planner import RecipeError
        from .planner.cli import run

        try:
            return run(args)
        except RecipeError as error:
            return _fail(str(error))
    if args.command == "build":
        from .course.build.notebooks import BuildError, build, problems

        try:
            if args.check:
                found = problems(args.names)
                print(
                    "\n".join([*found, "Run: python -m helpers build"])
                    if found
                    else "All notebooks match their sources."
                )
                return 1 if found else 0
            build(args.names, args.rerun)
        except BuildError as error:
            return _fail(str(error))
        return 0
    if args.command == "plans":
        from .planner.planned import plan_anew
        from .widgets.memory_calculator import write_table

        plan_anew()
        write_table()
        return 0
    if args.command == "chooser":
        from .planner.chooser import write_table

        write_table()
        return 0
    if args.command == "claims":
        from .claims.receipt import receipts
        from .course.receipts import claims_table

        print(claims_table(receipts()))
        return 0
    if args.command == "site":
        from .course.build.site import make_site

        print(make_site(args.out))
        return 0
    if args.command == "receipts":
        from .course.receipts import ReceiptsError, run_receipts

        try:
            return 1 if run_receipts(args.device, args.quick, args.fresh, tuple(args.names)) else 0
        except ReceiptsError as error:
            return _fail(str(error))
    from .course.grade import GradeError, grade

    try:
        settings = {key: value for key, value in vars(args).items() if key != "command"}
        grade(**settings)
    except GradeError as error:
        return _fail(str(error))
    return 0


def _fail(message: str) -> int:
    print(message, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())

"""python -m helpers handout --to FOLDER: a copy of the course for learners, without solved notebooks or tests."""

import argparse
import re
import shutil
from pathlib import Path

from ..__main__ import GROUPS
from ..core.files import ROOT
from ..planner import RecipeError

GIVEN = (
    *("labs", "helpers", "docs", "receipts", "README.md", "AGENTS.md", "LICENSE", "CITATION.cff", "Makefile"),
    *("pyproject.toml", "requirements.txt", "requirements-real.txt", "environment.yml"),
)
_LINK = re.compile(r"(?<!!)\[([^]]*)\]\(([^)#:]+)(?:#[^)]*)?\)")  # of a page to a file: its words and the path
_ASIDE = re.compile(rf" \({_LINK.pattern}\)")
_OF_REPOSITORY = re.compile(r"<!-- repository -->.*?<!-- end of repository -->", re.DOTALL)  # what a page says of it
_OF_MAINTAINERS = ("architecture.md", "checks.md", "comparison.md")  # pages about how the course is made
# What make can do in a copy; all else runs tests or solved notebooks.
_TARGETS = {"help", "$(READY)", "setup", "lab", "port", "planner", "clean"}
_TARGETS |= {"install-real", "install-triton", "install-deepspeed"}
_RULE = re.compile(r"^([^\s#:=]+):(?!=)", re.MULTILINE)
_OF_INSTRUCTORS = re.compile(
    r"^(?:git clone|make test) [^\n]*\n|^\| \*\*teach a course\*\* [^\n]*\n|^## Grade\n.*?(?=^## )",
    re.MULTILINE | re.DOTALL,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    parser.add_argument("--to", required=True, type=Path, metavar="FOLDER", help="a folder that does not exist yet")


def run(args: argparse.Namespace) -> int:
    """Copy the course. Returns the exit code 0.

    Raises:
        RecipeError: the folder exists, or this is no checkout of the course.
    """
    if args.to.exists():
        raise RecipeError(f"{args.to} already exists; name a new folder.")
    if not (ROOT / "labs").is_dir():
        raise RecipeError("There are no labs next to this package: run the command in a checkout of the course.")
    args.to.mkdir(parents=True)
    for name in GIVEN:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, args.to / name, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"))
        else:
            shutil.copy2(source, args.to / name)
    for name in _OF_MAINTAINERS:
        (args.to / "docs" / name).unlink()
    for page in [*args.to.glob("*.md"), *(args.to / "docs").glob("*.md")]:
        text = re.sub(r"\n{3,}", "\n\n", _OF_REPOSITORY.sub("", page.read_text(encoding="utf-8")))
        text = _front_page(text) if page.name == "README.md" else text
        text = _options(text) if page.name == "options.md" else text
        page.write_text(_without_dead_links(text.rstrip() + "\n", page.parent), encoding="utf-8", newline="\n")
    makefile = args.to / "Makefile"
    makefile.write_text(_makefile(makefile.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")
    print(f"{args.to} has the labs and what they need. To start, learners run `make lab` in that folder.")
    exercises = args.to / "helpers" / "exercises" / "reference" / "x[1-7].py"
    print(f"It includes the reference answers of X1 to X7. To remove them (solutions/README.md): rm {exercises}")
    return 0


def _front_page(text: str) -> str:
    """Return the front page without what needs the whole repository: its tests, the grader, its history."""
    text = _OF_INSTRUCTORS.sub("", text)
    absent = rf"\[[^]]*\]\((?:CONTRIBUTING\.md|CHANGELOG\.md|docs/(?:{'|'.join(_OF_MAINTAINERS)}))\)"
    return re.sub(rf"^{absent} · | · {absent}", "", text, flags=re.MULTILINE)


def _options(text: str) -> str:
    """Return the list of options without the commands of instructors and authors, which follow those of learners."""
    return re.sub(rf"^## {GROUPS['instructors']}\n.*?(?=^<!-- end)", "", text, flags=re.MULTILINE | re.DOTALL)


def _makefile(text: str) -> str:
    """Return the Makefile without the rules that need tests or solved notebooks."""
    kept = [
        block for block in text.split("\n\n") if set(_RULE.findall(block)) - {".PHONY", ".DEFAULT_GOAL"} <= _TARGETS
    ]
    text = re.sub(r"make test .*?(?=make setup)", "", "\n\n".join(kept).rstrip() + "\n", count=1)
    targets = " ".join(sorted(_TARGETS - {"$(READY)"}))
    return re.sub(r"^NBVAL = .*\n", "", re.sub(r"^(\.PHONY:).*", rf"\1 {targets}", text, flags=re.M), flags=re.M)


def _without_dead_links(text: str, folder: Path) -> str:
    """Return the text of a page in `folder` where links to files that are not in the copy are words alone.

    Such a link in parentheses, as "(solved)" behind a lab, is left out.
    """

    def there(link: re.Match[str]) -> bool:
        return (folder / link[2]).exists()

    text = _ASIDE.sub(lambda link: link[0] if there(link) else "", text)
    return _LINK.sub(lambda link: link[0] if there(link) else link[1], text)

"""Run the tests that a change can break: `python -m tests.changed`, or `make test-changed BASE=main`.

A test file is chosen when a changed module is among what it imports, directly or through others. A command's module
counts as imported where the test has the command's name in a text. Of a topic whose checks, reference or wrong answers
have changed, every mutant and every right answer is tried, where `make test` tries a sample. A changed source brings
its notebook, a changed helper a sample of the notebooks that import it, and any other changed file the tests of the
release. Changed set-up files bring everything.
"""

import argparse
import ast
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from helpers.__main__ import COMMANDS
from helpers.core.files import ROOT

from .sampling import CHANGED_TOPICS, sample

EVERYTHING = ("conftest.py", "requirements.txt", "pyproject.toml", "Makefile", "tests/sampling.py")
ANSWERS = "tests/labs"  # the tests that try wrong and right answers; they import their topics by name


class Modules:
    """The Python files of the packages `helpers` and `tests`, and which of them each one imports."""

    def __init__(self, root: Path) -> None:
        self._root = root
        files = [path for folder in ("helpers", "tests", "solutions") for path in (root / folder).rglob("*.py")]
        files = [path for path in files if "hand_ins" not in path.parts]  # some of these do not parse, on purpose
        self._files = {self._dotted(path): path.relative_to(root).as_posix() for path in files}
        exported = ast.parse((root / "helpers" / "__init__.pyi").read_text(encoding="utf-8")).body
        self._exported = {
            name.name: f"helpers.{line.module}"
            for line in exported
            if isinstance(line, ast.ImportFrom)
            for name in line.names
        }
        self._trees = {
            path: ast.parse((root / path).read_text(encoding="utf-8"), filename=path) for path in self._files.values()
        }
        self._imports = {self._files[name]: set(self._imported(name)) for name in self._files}

    def labs(self) -> list[str]:
        """Return the sources of the labs."""
        return sorted(path for path in self._imports if path.startswith("solutions/"))

    def test_files(self) -> list[str]:
        """Return all files with tests."""
        return sorted(path for path in self._imports if PurePosixPath(path).name.startswith("test_"))

    def reached(self, path: str) -> set[str]:
        """Return what a file imports, directly or through others, itself included."""
        reached, waiting = {path}, [path, *self._commands(path)]
        while waiting:
            new = self._imports[waiting.pop()] - reached
            reached |= new
            waiting += new
        return reached

    def _commands(self, path: str) -> list[str]:
        """Return the modules of the commands whose names stand in a text of `path`."""
        texts = [node.value for node in ast.walk(self._trees[path]) if isinstance(node, ast.Constant)]
        words = {word for text in texts if isinstance(text, str) for word in text.split()}
        return [self._files[f"helpers{command.module}"] for name, command in COMMANDS.items() if name in words]

    def _dotted(self, path: Path) -> str:
        parts = path.relative_to(self._root).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def _imported(self, name: str) -> Iterator[str]:
        """Yield the files that the module `name` names: packages on the way, modules, and what they are asked for."""
        path = self._files[name]
        package = name if path.endswith("/__init__.py") else name.rpartition(".")[0]
        for found in (*self._named(self._trees[path], package), package, f"{package}.conftest"):
            parts = found.split(".")
            for n in range(1, len(parts) + 1):
                if (dotted := ".".join(parts[:n])) in self._files:
                    yield self._files[dotted]

    def _named(self, tree: ast.Module, package: str) -> Iterator[str]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                module = ".".join([*base, *([node.module] if node.module else [])])
                for alias in node.names:
                    yield self._exported.get(alias.name, module) if module == "helpers" else f"{module}.{alias.name}"


def changed_topics(paths: Iterable[str]) -> list[str]:
    """Return the topics whose checks, reference, wrong or right answers are among `paths`."""
    topics = {path.stem for path in (ROOT / "helpers" / "exercises" / "reference").glob("*.py")} - {"__init__"}
    found = set()
    for path in map(PurePosixPath, paths):
        if path.parts[:2] in (("helpers", "exercises"), ("tests", "answers")):
            found |= {path.with_suffix("").name, *path.parts[2:-1]} & topics
    return sorted(found)


def chosen(paths: Iterable[str]) -> list[str]:
    """Return what pytest runs for a change of `paths`, relative to the project: test files, then notebooks."""
    modules = Modules(ROOT)
    paths = set(paths)
    if paths & set(EVERYTHING):
        return ["tests"]
    answers = (
        {path for path in modules.test_files() if path.startswith(f"{ANSWERS}/")} if changed_topics(paths) else set()
    )
    tests = {path for path in modules.test_files() if modules.reached(path) & paths} | answers
    others = [path for path in paths if not path.endswith(".py") or path.startswith("solutions/")]
    if others:
        tests |= {path for path in modules.test_files() if path.startswith("tests/release/")}
    labs = [path for path in modules.labs() if modules.reached(path) & paths]
    run = [path for path in labs if path in paths] + (sample(labs, one_in=4) or labs[:1])
    return [*sorted(tests), *sorted({PurePosixPath(path).with_suffix(".ipynb").as_posix() for path in run})]


def changed_files(base: str) -> list[str]:
    """Return the files that differ from the commit `base`, those not committed yet included.

    Raises:
        SystemExit: there is no such commit.
    """
    new = ["git", "ls-files", "--others", "--exclude-standard"]
    paths = []
    for command in (["git", "diff", "--name-only", base, "--"], new):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            print(f"git does not know the commit {base!r}: name another one, as in make test-changed BASE=HEAD~1")
            raise SystemExit(2)
        paths += done.stdout.splitlines()
    return paths


def main() -> int:
    """Run pytest on what the change can break. Returns its exit code; 0 where nothing has changed."""
    parser = argparse.ArgumentParser(prog="python -m tests.changed", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--base", default="HEAD", help="the commit to compare with; default: HEAD, what is not committed"
    )
    parser.add_argument("--list", action="store_true", help="print the files, run nothing")
    asked, more = parser.parse_known_args()
    paths = changed_files(asked.base)
    files, topics = chosen(paths), changed_topics(paths)
    print(f"{len(paths)} changed files, {len(files)} files of tests; all mutants of: {', '.join(topics) or 'no topic'}")
    if asked.list or not files:
        print("\n".join(files))
        return 0
    environment = os.environ | {CHANGED_TOPICS: " ".join(topics)}
    notebooks = ["--nbval-lax", "--nbval-cell-timeout=600"] if any(path.endswith(".ipynb") for path in files) else []
    command = [sys.executable, "-m", "pytest", "--dist", "loadfile", *notebooks, *more, *files]
    return subprocess.run(command, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())

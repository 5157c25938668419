"""How large the house is: `python -m tests.release.lines`, or `make lines`.

Lines of code by folder, without comments, docstrings and blank lines, and the difference to the last release, which is
the commit that wrote the present version into pyproject.toml. Files that the build writes are not counted.
"""

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import PurePosixPath

from helpers.core.files import ROOT

_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
_GENERATED = ("helpers/exercises/reference/",)


def code_lines(text: str) -> int:
    """Return the lines of Python code in `text`; lines that hold nothing but a comment or a docstring do not count."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and ast.get_docstring(node, clean=False) is not None:
            lines.difference_update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def folder_of(path: str) -> str:
    """Return the folder under which a file counts: two levels deep, such as "helpers/planner"."""
    return "/".join(PurePosixPath(path).parent.parts[:2])


def lines_by_folder(files: dict[str, str]) -> Counter[str]:
    """Return the lines of code of each folder, of files by path."""
    count: Counter[str] = Counter()
    for path, text in files.items():
        try:
            count[folder_of(path)] += code_lines(text)
        except (SyntaxError, tokenize.TokenError):  # hostile submissions, which need not parse
            count[folder_of(path)] += sum(bool(line.strip()) for line in text.splitlines())
    return count


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, encoding="utf-8").stdout


def last_release() -> str:
    """Return the commit that set the present version; "" where the history does not reach back to it."""
    (version,) = [line for line in (ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("version = ")]
    return _git("log", "--format=%H", f"-S{version}", "--", "pyproject.toml").strip().rpartition("\n")[2]


def _counted(path: str) -> bool:
    return path.endswith(".py") and not path.startswith(_GENERATED)


def files_at(commit: str) -> dict[str, str]:
    """Return the Python files of a commit, by path."""
    paths = [path for path in _git("ls-tree", "-r", "--name-only", commit).splitlines() if _counted(path)]
    return {path: _git("show", f"{commit}:{path}") for path in paths}


def files_now() -> dict[str, str]:
    """Return the Python files that git knows, by path."""
    paths = [path for path in _git("ls-files").splitlines() if _counted(path) and (ROOT / path).exists()]
    return {path: (ROOT / path).read_text(encoding="utf-8") for path in paths}


def table(now: Counter[str], before: Counter[str]) -> str:
    """Return a line for each folder: its lines of code, and how many more they are than `before`, if that is known."""
    rows = sorted(now.keys() | before.keys())
    lines = [f"{folder:<28}{now[folder]:>8,}{_more(now[folder], before[folder], before)}" for folder in rows]
    total, was = sum(now.values()), sum(before.values())
    return "\n".join([*lines, f"{'all':<28}{total:>8,}{_more(total, was, before)}"])


def _more(now: int, was: int, before: Counter[str]) -> str:
    return f"{now - was:>+8,}" if before and now != was else ""


def main() -> int:
    """Print the table. Returns 0."""
    release = last_release()
    before = lines_by_folder(files_at(release)) if release else Counter()
    since = (
        f"and more than at the last release ({release[:7]})" if release else "(the last release is not in the history)"
    )
    print(f"Lines of code by folder {since}\n{table(lines_by_folder(files_now()), before)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A lab's source: percent-format Python whose cells carry a name and a role.

Roles are written on the cell marker: `setup=true` (imports and what every later cell needs), `answer=true`
(the learner fills it in), `points=N` (a graded check), `reveal=true` (an answer whose solution learners may see).
"""

import ast
import re
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import jupytext
from nbformat import NotebookNode

from ...core.files import ROOT

_CHECK = re.compile(r'(?:[\w, ]+ = )?check\(\s*"([\w.]+)"')
NO_SOURCES = (
    "The sources of the labs are not installed here. Run this in a checkout of the course (after pip install -e .)."
)


class BuildError(Exception):
    """A source that cannot be built. The message says which cell and why."""


@lru_cache(maxsize=64)
def _cells_of(text: str) -> list[NotebookNode]:
    """Return the cells of a source's text. A build asks for them many times, and to copy them is much faster."""
    plain = {"extension": ".py", "format_name": "percent", "comment_magics": False}  # or "#!" would lose its "#"
    return jupytext.reads(text, fmt=plain).cells


@dataclass(frozen=True)
class Source:
    """One lab or exercise, read from `solutions/NN_topic.py`."""

    path: Path

    @property
    def name(self) -> str:
        """Return the name all its notebooks share, e.g. "03b_x1_amp_cnn"."""
        return self.path.stem

    @property
    def number(self) -> str:
        """Return its place in the course, e.g. "03". The file's name is the only place where it is written."""
        return self.name.partition("_")[0]

    @property
    def topic(self) -> str:
        """Return its name without the number: "mixed_precision", "x1_amp_cnn"."""
        return self.name.partition("_")[2]

    @property
    def exercise(self) -> str:
        """Return the module of its checks: "x1" for "03b_x1_amp_cnn", "mixed_precision" for "03_mixed_precision"."""
        return self.topic.partition("_")[0] if self.graded else self.topic

    @property
    def graded(self) -> bool:
        """Return whether it is a graded exercise."""
        return re.match(r"x\d_", self.topic) is not None

    def cells(self) -> list[NotebookNode]:
        """Return its cells, solved."""
        return deepcopy(_cells_of(self.path.read_text(encoding="utf-8")))

    def reference(self) -> str | None:
        """Return the module that checks compare with: imports of the set-up cell and all answer cells.

        None when the source has no answer cells.
        """
        cells = self.cells()
        answers = [cell.source for cell in cells if cell.metadata.get("answer")]
        if not answers:
            return None
        imports, values = [], []
        used = {node.id for answer in answers for node in ast.walk(ast.parse(answer)) if isinstance(node, ast.Name)}
        for cell in cells:
            if cell.metadata.get("setup"):
                for node in ast.parse(cell.source).body:
                    if isinstance(node, ast.ImportFrom) and "helpers.exercises" in (node.module or ""):
                        node.names = [name for name in node.names if (name.asname or name.name) in used]
                        imports += [ast.unparse(node)] if node.names else []  # others would import this module again
                    elif isinstance(node, ast.Import | ast.ImportFrom):
                        imports.append(ast.unparse(node))
                    elif isinstance(node, ast.Assign):
                        values.append(ast.unparse(node))
        header = (
            f'"""The reference answers of {self.path.parent.name}/{self.path.name}, which `check` compares with.\n\n'
            'Written by `python -m helpers build`; change the source, not this file.\n"""\n'
        )
        text = "\n\n\n".join(["\n".join([header, *imports, "", *values]), *answers])
        return re.sub(r"^ *### (BEGIN|END) SOLUTION\n", "", text + "\n", flags=re.MULTILINE)


def checked_part(code: str) -> str | None:
    """Return the part that the cell `code` begins by checking, such as "x1.scaler"; None when it begins otherwise."""
    call = _CHECK.match(code)
    return call and call[1]


def sources() -> list[Source]:
    """Return all labs and exercises of the checkout, in order; none when only the package is installed."""
    return [Source(path) for path in sorted((ROOT / "solutions").glob("[0-9][0-9]*_*.py"))]

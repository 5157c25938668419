"""A copy of the course that can probe answers and cannot judge them."""

import ast
import shutil
from pathlib import Path

from ....core.files import PACKAGE

_LEFT_OUT = ("__pycache__", "reference", "build", "grade")


class _NoVerdicts(ast.NodeTransformer):
    """Empty the judge of each check, and take its hint."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        if node.name == "judge":
            node.body = [ast.Raise(ast.Name("NotImplementedError", ast.Load()))]
        return node


def probes_only(folder: Path) -> Path:
    """Copy the package `helpers` into `folder`, without reference answers, judges and grader; return `folder`.

    What the copy lacks can be neither read nor patched by an answer.
    """
    shutil.copytree(PACKAGE, folder / "helpers", ignore=shutil.ignore_patterns(*_LEFT_OUT))
    for path in (folder / "helpers" / "exercises").rglob("*.py"):
        tree = _NoVerdicts().visit(ast.parse(path.read_text(encoding="utf-8")))
        path.write_text(ast.unparse(ast.fix_missing_locations(tree)), encoding="utf-8")
    return folder

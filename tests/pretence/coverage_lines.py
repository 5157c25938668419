"""Which lines of a source depend on CUDA: those that a machine without a GPU never runs, or runs otherwise.

They are found in the syntax tree. A statement counts if it names CUDA, or if it stands in a branch whose test does. A
test may name CUDA itself, or a variable or a one-line function whose value does (`gpus = torch.cuda.device_count()`).
What follows `if device.type != "cuda": return` stands in a branch as well.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.core.files import ROOT

WITH, WITHOUT = "with CUDA", "without"  # the machine that runs an arm of a branch
# A layout's cuda_graphs is a figure of a plan, and the report of nccl-tests is a file like others.
_NAME = re.compile(r"cuda(?!_graphs)|nccl(?!_tests)", re.IGNORECASE)
_TEXT = re.compile(r"(cpu:gloo,)?(cuda(:\d+)?|nccl|cuda:nccl)")  # strings that name a device or a backend, whole
_LEAVES = ast.Return | ast.Raise | ast.Continue | ast.Break


@dataclass(frozen=True)
class CudaLine:
    """One statement, or the head of one that has a body.

    Attributes:
        path: of the source, from the root of the checkout, with slashes.
        first, last: its lines, counted from 1.
        text: its first line, without indentation.
        arm: which machine comes here: `WITH` or `WITHOUT`.
        within: the first lines of the branches, functions and classes around it.
    """

    path: str
    first: int
    last: int
    text: str
    arm: str
    within: tuple[str, ...] = ()

    def ran(self, lines: set[int]) -> bool:
        """Say whether one of its lines is among `lines`."""
        return not lines.isdisjoint(range(self.first, self.last + 1))


def cuda_lines(path: Path) -> list[CudaLine]:
    """Return the lines of the Python source at `path` that depend on CUDA, in order."""
    return lines_of_text(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix())


def lines_of_text(text: str, path: str) -> list[CudaLine]:
    """Return the lines of a source that depend on CUDA; `path` is its name."""
    tree = ast.parse(text)
    return list(_Finder(path, text.splitlines(), _speaking_names(tree)).block(tree.body))


def _names_cuda(node: ast.AST, names: frozenset[str] = frozenset()) -> bool:
    """Say whether an expression names CUDA, or one of `names`."""
    for part in ast.walk(node):
        match part:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                if name in names or _NAME.search(name):
                    return True
            case ast.Constant(value=str(text)) if _TEXT.fullmatch(text):
                return True
    return False


def _speaking_names(tree: ast.AST) -> frozenset[str]:
    """Return the variables and one-line functions whose value says something about the machine's GPUs.

    A variable that holds a device does not: it is there on every machine.
    """
    names = set()
    for node in ast.walk(tree):
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                pass
            case ast.FunctionDef(name=name, body=[*_, ast.Return(value=ast.expr() as value)]) if len(node.body) <= 2:
                pass
            case _:
                continue
        if _names_cuda(value) and not _makes_device(value):
            names.add(name)
    return frozenset(names)


def _makes_device(value: ast.expr) -> bool:
    calls = (node.func for node in ast.walk(value) if isinstance(node, ast.Call))
    return any(isinstance(function, ast.Attribute) and function.attr == "device" for function in calls)


def _arms(test: ast.expr) -> tuple[str, str]:
    """Return which machine passes `test`, a test that names CUDA, and which fails it."""
    match test:
        case ast.BoolOp(values=values):
            arms = [_arms(value) for value in values if _names_cuda(value)]
            return (WITHOUT, WITH) if (WITHOUT, WITH) in arms else (WITH, WITHOUT)
        case ast.UnaryOp(op=ast.Not()) | ast.Compare(ops=[ast.NotEq() | ast.Lt()]):
            return WITHOUT, WITH
    return WITH, WITHOUT


class _Finder:
    """Walks the blocks of one source."""

    def __init__(self, path: str, lines: list[str], names: frozenset[str]) -> None:
        self._path, self._lines, self._names = path, lines, names

    def block(
        self, statements: Sequence[ast.stmt], arm: str | None = None, within: tuple[str, ...] = ()
    ) -> Iterator[CudaLine]:
        """Yield the lines of `statements`; `arm` says who comes here, None if every machine does."""
        for statement in statements:
            text = self._lines[statement.lineno - 1].strip()
            inside = (*within, text)
            parts = list(ast.iter_child_nodes(statement))
            bodies = [part for part in parts if isinstance(part, ast.stmt)]
            head = [part for part in parts if not isinstance(part, ast.stmt | ast.ExceptHandler | ast.match_case)]
            if not _is_docstring(statement) and (arm or self._depends(statement, head)):
                last = min((body.lineno for body in bodies), default=statement.end_lineno + 1) - 1
                yield CudaLine(self._path, statement.lineno, max(last, statement.lineno), text, arm or WITH, within)
            if isinstance(statement, ast.If) and _names_cuda(statement.test, self._names):
                passes, fails = _arms(statement.test) if arm is None else (arm, arm)
                yield from self.block(statement.body, passes, inside)
                yield from self.block(statement.orelse, fails, inside)
                if isinstance(statement.body[-1], _LEAVES) and not statement.orelse:
                    arm = fails
            else:
                for part in getattr(statement, "handlers", []) + getattr(statement, "cases", []):
                    bodies += part.body
                yield from self.block(bodies, arm, inside)

    def _depends(self, statement: ast.stmt, head: list[ast.AST]) -> bool:
        names = self._names if isinstance(statement, ast.If) else frozenset()
        return any(_names_cuda(part, names) for part in head)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)

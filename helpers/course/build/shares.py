"""How much of a lab's code is given: neither written by the learner nor predicted.

Counted are lines of code: no blank lines, no comments, no docstrings, nothing of the set-up cell. A line belongs to
one of four:

- **answers**: answer cells as solved, with the cells that check them and give hints;
- **predicted**: cells in which a learner writes a guess, and cells that reveal what became of one;
- **shown**: in all other cells, statements that print, draw or record a claim, and loops that do nothing else;
- **given**: the rest. This is what a learner only reads.
"""

import ast
import io
import tokenize
from collections import Counter

from nbformat import NotebookNode

from ...core.table import text_table
from .source import Source, checked_part

KINDS = ("answers", "predicted", "shown", "given")
_SHOWING = {"print", "show", "claims", "axes", "figure"}
_NO_CODE = {tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def shares_table(sources: list[Source]) -> str:
    """Return a table: the lines of each kind in each lab, and the share of those that are given."""
    rows = [["lab", *KINDS, "share given"]]
    for source in sources:
        counts = lines_by_kind(source)
        share = counts["given"] / max(1, counts.total())
        rows.append([source.name, *(str(counts[kind]) for kind in KINDS), f"{share:.0%}"])
    return text_table(rows)


def lines_by_kind(source: Source) -> Counter[str]:
    """Count the lines of code of `source` by kind."""
    counts: Counter[str] = Counter()
    for cell in source.cells():
        if cell.cell_type == "code" and not cell.metadata.get("setup"):
            counts += _of_cell(cell)
    return counts


def _of_cell(cell: NotebookNode) -> Counter[str]:
    lines = _code_lines(cell.source)
    if cell.metadata.get("answer") or checked_part(cell.source) or cell.source.startswith("hint("):
        return Counter(answers=len(lines))
    if "### BEGIN GUESS" in cell.source or ".reveal(" in cell.source:
        return Counter(predicted=len(lines))
    shown = {line for node in ast.parse(cell.source).body for line in _lines_that_show(node)} & lines
    return Counter(shown=len(shown), given=len(lines - shown))


def _code_lines(code: str) -> set[int]:
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    lines = {n for token in tokens if token.type not in _NO_CODE for n in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # a docstring
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return lines


def _lines_that_show(node: ast.stmt) -> set[int]:
    """Return the lines of the statement `node` that only show something: all of them, or those of statements inside."""
    inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
    lines = set().union(*map(_lines_that_show, inner))
    own = set(range(node.lineno, node.end_lineno + 1))
    if inner:
        inside = {line for child in inner for line in range(child.lineno, child.end_lineno + 1)}
        return own if isinstance(node, ast.For) and lines == inside else lines
    return own if _shows(node) else set()


def _shows(node: ast.stmt) -> bool:
    """Say whether a statement without others in it begins with a name that shows, or makes a figure."""
    if isinstance(node, ast.Assign):
        return all(_root(target) in _SHOWING for target in node.targets)
    return isinstance(node, ast.Expr) and _root(node.value) in _SHOWING


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None

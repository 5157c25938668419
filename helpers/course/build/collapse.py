"""Which cells a notebook shows collapsed: set-up, and code that only draws, whose alt text would give a figure away.

JupyterLab shows such a cell as a bar that opens with a click; it runs like any other.
"""

import ast

from nbformat import NotebookNode

MOSTLY = 0.6  # of a cell's lines, from which on it draws and does little else
_DRAWING = {"figure", "fig", "axes", "axis", "ax", "plt", "Figure", "show"}


def collapsed(cell: NotebookNode) -> bool:
    """Return whether a code cell is shown collapsed; `cell` has the metadata of its source."""
    if cell.cell_type != "code":
        return False
    return bool(cell.metadata.get("setup")) or cell.get("id") == "install" or only_draws(cell)


def only_draws(cell: NotebookNode) -> bool:
    """Return whether drawing a figure is most of what a cell does. What learners fill in or check never is."""
    asked = ("answer", "points", "reveal")
    if any(name in cell.metadata for name in asked) or "my_guess" in cell.source or "check(" in cell.source:
        return False
    try:
        tree = ast.parse(cell.source)
    except SyntaxError:  # a magic
        return False
    if not any(isinstance(node, ast.Call) and _name(node) == "show" for node in ast.walk(tree)):
        return False
    lines = {part: part.end_lineno - part.lineno + 1 for part in tree.body}
    return sum(lines[part] for part in tree.body if _draws(part)) >= MOSTLY * sum(lines.values())


def _draws(part: ast.stmt) -> bool:
    if isinstance(part, ast.Import | ast.ImportFrom):
        return True
    nodes = list(ast.walk(part))
    prints = any(isinstance(node, ast.Call) and _name(node) in ("print", "reveal") for node in nodes)
    return not prints and any(isinstance(node, ast.Name) and node.id in _DRAWING for node in nodes)


def _name(call: ast.Call) -> str:
    return getattr(call.func, "id", getattr(call.func, "attr", ""))

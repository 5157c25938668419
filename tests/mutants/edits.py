"""Make wrong answers by machine: small edits of the syntax tree, as slips of the pen are."""

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_OPERATORS: dict[type[ast.AST], list[type[ast.AST]]] = {
    ast.Add: [ast.Sub],
    ast.Sub: [ast.Add],
    ast.Mult: [ast.Div],
    ast.Div: [ast.Mult],
    ast.FloorDiv: [ast.Mod],
    ast.Mod: [ast.FloorDiv],
    ast.Pow: [ast.Mult],
    ast.Lt: [ast.LtE, ast.Gt],
    ast.LtE: [ast.Lt],
    ast.Gt: [ast.GtE, ast.Lt],
    ast.GtE: [ast.Gt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.In: [ast.NotIn],
    ast.And: [ast.Or],
    ast.Or: [ast.And],
}
_DROPPED = (ast.Expr, ast.Assign, ast.AugAssign, ast.If, ast.For)
Change = Callable[[ast.AST], None]


@dataclass(frozen=True)
class Edit:
    """One edit of an answer.

    Attributes:
        words: what was written and what stands there now, e.g. "rows += len(x)  ->  pass".
        source: the text of the whole module, edited.
    """

    words: str
    source: str


def edits(source: str, names: tuple[str, ...]) -> Iterator[Edit]:
    """Yield all edits of the functions and classes called `names`, and of the helpers they call, in `source`."""
    tree = _without_strict(ast.parse(source))
    reached = _reached(tree, names)
    texts = [ast.unparse(node) for node in tree.body]
    for top, node in enumerate(tree.body):
        if getattr(node, "name", "") not in reached:
            continue
        seen = {texts[top]}
        words = {id(n) for raised in ast.walk(node) if isinstance(raised, ast.Raise) for n in ast.walk(raised)}
        for place, part in enumerate(ast.walk(node)):
            if id(part) in words:  # of an error's message
                continue
            for change in _changes(part):
                edited = copy.deepcopy(node)
                change(list(ast.walk(edited))[place])
                text = ast.unparse(ast.fix_missing_locations(edited))
                if text not in seen:
                    seen.add(text)
                    yield Edit(_words(texts[top], text), "\n\n\n".join([*texts[:top], text, *texts[top + 1 :]]))


def _without_strict(tree: ast.Module) -> ast.Module:
    """Take `strict=True` out of all calls: it makes a difference where something else is wrong, and only there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            node.keywords = [keyword for keyword in node.keywords if keyword.arg != "strict"]
    return tree


def _reached(tree: ast.Module, names: tuple[str, ...]) -> set[str]:
    """Return `names`, and the module's own functions and classes that they mention, directly or not."""
    own = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    reached: set[str] = set()
    ahead = [name for name in names if name in own]
    while ahead:
        name = ahead.pop()
        if name not in reached:
            reached.add(name)
            ahead += [n.id for n in ast.walk(own[name]) if isinstance(n, ast.Name) and n.id in own]
    return reached


def _words(was: str, now: str) -> str:
    """Say which lines are replaced by which: those between what both texts begin and end with."""
    old, new = was.splitlines(), now.splitlines()
    while old and new and old[0] == new[0]:
        del old[0], new[0]
    while old and new and old[-1] == new[-1]:
        del old[-1], new[-1]
    gone, come = (" / ".join(map(str.strip, lines))[:160] for lines in (old, new))
    return f"{gone or '(nothing)'}  ->  {come or '(dropped)'}"


def _changes(node: ast.AST) -> Iterator[Change]:
    """Yield functions that change such a node, or a copy of it, in place."""
    yield from _of_operators(node)
    if isinstance(node, ast.Constant):
        yield from _of_constants(node)
    if isinstance(node, ast.Call):
        yield from _of_calls(node)
    if isinstance(node, ast.If):
        for value in (True, False):
            yield lambda n, value=value: setattr(n, "test", ast.Constant(value))
    if isinstance(node, ast.IfExp):
        yield lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.decorator_list:
        yield lambda n: n.decorator_list.clear()
    if isinstance(node, ast.Return) and node.value is not None:
        yield lambda n: setattr(n, "value", None)
    body = getattr(node, "body", None)
    if isinstance(body, list):
        yield from _of_bodies(body)


def _of_operators(node: ast.AST) -> Iterator[Change]:
    for field in ("op", "ops"):
        value = getattr(node, field, None)
        if isinstance(value, list):  # of a comparison
            for other in _OPERATORS.get(type(value[0]), []):
                yield lambda n, other=other: n.ops.__setitem__(0, other())
        else:
            for other in _OPERATORS.get(type(value), []):
                yield lambda n, other=other: setattr(n, "op", other())
    if isinstance(node, ast.BinOp):

        def one_side(n: ast.AST) -> None:
            n.right, n.op = ast.Constant(1), ast.Mult()

        yield one_side
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield lambda n: setattr(n, "operand", ast.UnaryOp(ast.Not(), n.operand))


def _of_constants(node: ast.Constant) -> Iterator[Change]:
    value = node.value
    if isinstance(value, bool):
        others: list = [not value]
    elif isinstance(value, int):
        others = [value + 1, value - 1]
    elif isinstance(value, float):
        others = [value * 2, 0.0]
    else:
        others = []
    for other in others:
        yield lambda n, other=other: setattr(n, "value", other)


def _of_calls(node: ast.Call) -> Iterator[Change]:
    if len(node.args) > 1:

        def swap(n: ast.AST) -> None:
            n.args[0], n.args[1] = n.args[1], n.args[0]

        yield swap
    for i in range(len(node.keywords)):
        yield lambda n, i=i: n.keywords.pop(i)
    if isinstance(node.func, ast.Attribute) and not node.args and not node.keywords:

        def uncalled(n: ast.AST) -> None:  # x.float() becomes x
            value = n.func.value
            n.__class__, n.__dict__ = type(value), vars(value)

        yield uncalled


def _depend(first: ast.stmt, second: ast.stmt) -> bool:
    """Whether the order of two statements may matter: one sets what the other mentions, or both call something."""
    parts = [list(ast.walk(statement)) for statement in (first, second)]
    if any(isinstance(s, ast.FunctionDef | ast.ClassDef) for s in (first, second)):
        return False
    if all(any(isinstance(n, ast.Call) for n in nodes) for nodes in parts):
        return True
    named = [{ast.unparse(n): n.ctx for n in nodes if isinstance(n, ast.Name | ast.Attribute)} for nodes in parts]
    return any(
        isinstance(named[0][n], ast.Store) or isinstance(named[1][n], ast.Store) for n in named[0].keys() & named[1]
    )


def _of_bodies(body: list[ast.stmt]) -> Iterator[Change]:
    for i, statement in enumerate(body):
        if isinstance(statement, _DROPPED) and not isinstance(getattr(statement, "value", None), ast.Constant):

            def drop(n: ast.AST, i: int = i) -> None:
                n.body[i] = ast.Pass()

            yield drop
        if isinstance(statement, ast.With):

            def unwrap(n: ast.AST, i: int = i) -> None:
                n.body[i : i + 1] = n.body[i].body

            yield unwrap
        if i and _depend(body[i - 1], statement):

            def swap(n: ast.AST, i: int = i) -> None:
                n.body[i - 1], n.body[i] = n.body[i], n.body[i - 1]

            yield swap

"""The rooms of the package and who imports whom: the picture of the architecture, drawn from the imports."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path


def imported_rooms(package: Path) -> dict[str, set[str]]:
    """Return for each room (a folder directly in `package`) the rooms that its files import.

    Loose modules of `package` are no rooms.
    """
    rooms = sorted(path.parent.name for path in package.glob("*/__init__.py"))
    return {
        room: {other for path in (package / room).rglob("*.py") for other in _imports(path, package)}
        & set(rooms) - {room}
        for room in rooms
    }


def _imports(path: Path, package: Path) -> Iterator[str]:
    """Yield the first name below `package` of everything that `path` imports from it."""
    depth = len(path.relative_to(package).parts)  # as many dots lead to the package itself
    for node in _statements(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom):
            continue
        names = [alias.name for alias in node.names]
        if node.level == depth:
            yield from [node.module.partition(".")[0]] if node.module else names
        elif not node.level and (node.module or "").partition(".")[0] == package.name:
            rest = node.module.partition(".")[2]
            yield from [rest.partition(".")[0]] if rest else []


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements inside `node`, at any depth. No expression holds an import, and most of a tree is these."""
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        for statement in getattr(node, block, ()):
            yield statement
            yield from _statements(statement)


def room_picture(package: Path) -> str:
    """Return a Mermaid diagram: an arrow from each room to those it imports; what follows from others is left out."""
    rooms = imported_rooms(package)
    lines = ["```mermaid", "graph TD"]
    for room, below in rooms.items():
        through = {far for near in below for far in _reached(near, rooms)}
        lines += [f"    {room} --> {other}" for other in sorted(below - through)]
    return "\n".join([*lines, "```"])


def _reached(room: str, rooms: dict[str, set[str]]) -> set[str]:
    """Return all rooms that `room` imports, directly or through others."""
    reached: set[str] = set()
    waiting = [room]
    while waiting:
        new = rooms[waiting.pop()] - reached
        reached |= new
        waiting += new
    return reached


def _prose(docstring: str) -> str:
    """Return the paragraphs of a package's docstring up to its list of files or its example."""
    paragraphs = docstring.split("\n\n")
    listing = re.compile(r"^(?: |python -m |[\w.]+\.py  )", re.MULTILINE)
    first_listing = next((i for i, text in enumerate(paragraphs) if listing.search(text)), len(paragraphs))
    return " ".join(" ".join(paragraphs[:first_listing]).split())


def room_table(package: Path) -> str:
    """Return a row for each room and each room within one: what belongs there, as its docstring says.

    The topics of `exercises` have none: they are all built alike, and named like their labs.
    """
    lines = ["| Room | What belongs there |", "|---|---|"]
    topics = {path.stem for path in (package / "exercises" / "reference").glob("*.py")} - {"__init__"}
    for path in sorted(package.rglob("__init__.py")):
        room = path.parent.relative_to(package)
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if room.parts and not topics & set(room.parts):
            lines.append(f"| `{package.name}/{room.as_posix()}` | {_prose(text)} |")
    return "\n".join(lines)

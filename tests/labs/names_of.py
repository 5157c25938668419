"""The names of a lab, from some cells of its solution: so tests use what learners are shown."""

from pathlib import Path
from typing import Any

from helpers.core.files import ROOT
from helpers.course.build.source import Source


def names_of(lab: str, *cells: str) -> dict[str, Any]:
    """Run these cells of a lab's solution, in their order, and return its names."""
    (path,) = Path(ROOT, "solutions").glob(f"*_{lab}.py")
    names: dict[str, Any] = {"__name__": lab}
    for cell in Source(path).cells():
        if cell.metadata.get("name") in cells:
            exec(compile(cell.source, f"{path.name}: {cell.metadata.name}", "exec"), names)
    return names

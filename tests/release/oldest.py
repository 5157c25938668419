"""Print the lowest versions that pyproject.toml accepts, as pins for pip: what `make test-oldest` installs.

Nothing is listed twice, so the pins cannot differ from the ranges. Only the standard library is needed, so that any
Python runs this.
"""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNPINNED = ("deepspeed", "triton", "real")  # extras that the course runs without


def oldest(project: dict) -> list[str]:
    """Return `name==version` for each dependency `name>=version` of pyproject.toml's [project] table."""
    extras = [extra for name, extra in project["optional-dependencies"].items() if name not in UNPINNED]
    ranges = sum(extras, project["dependencies"])
    return [line.replace(">=", "==") for line in ranges if not line.startswith(project["name"])]


if __name__ == "__main__":
    print(*oldest(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]), sep="\n")

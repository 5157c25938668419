"""What the user typed to start the course's program, so that a command that is printed can be run as it stands."""

import sys
from pathlib import Path

PROGRAM = "training-at-scale"  # the console script, as pyproject.toml calls it


def program() -> str:
    """Return how the user started this program: by its name, or as a module of Python."""
    return PROGRAM if Path(sys.argv[0]).stem == PROGRAM else "python -m helpers"

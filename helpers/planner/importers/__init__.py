"""Configurations and launch scripts of other programs, read as the planner's own description."""

from .read_file import read_file
from .said import Imported

__all__ = ["Imported", "read_file"]

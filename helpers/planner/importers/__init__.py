"""What others train with, read as the planner's own description: configurations and launch scripts."""

from .read_file import read_file
from .said import Imported

__all__ = ["Imported", "read_file"]

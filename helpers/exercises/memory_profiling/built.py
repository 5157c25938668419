"""What the lab builds and later labs use: the course's version of it."""

from ..reference.memory_profiling import still_there

__all__ = ["still_there"]

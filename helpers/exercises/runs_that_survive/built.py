"""What the lab builds and later labs use: the course's version of it."""

from ..reference.runs_that_survive import Checkpoints, DataOrder

__all__ = ["Checkpoints", "DataOrder"]

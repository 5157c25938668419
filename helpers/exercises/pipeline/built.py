"""What the lab builds and later labs use: the course's version of it."""

from ..reference.pipeline import one_f_one_b

__all__ = ["one_f_one_b"]

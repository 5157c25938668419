"""What the lab builds and later labs use: the course's version of it."""

from ..reference.pipeline import gpipe, interleaved, one_f_one_b

__all__ = ["gpipe", "interleaved", "one_f_one_b"]

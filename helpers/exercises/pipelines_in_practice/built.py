"""What the lab builds and later labs use: the course's version of it."""

from ..reference.pipelines_in_practice import zero_bubble

__all__ = ["zero_bubble"]

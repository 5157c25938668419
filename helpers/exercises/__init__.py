"""Exercises and their checks: one file a topic, or a folder, all built from the `Check` and `Part` of `base.py`."""

from .checking import check

__all__ = ["check"]
